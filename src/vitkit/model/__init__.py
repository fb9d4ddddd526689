"""The Vision Transformer: `vit` is the paper (arXiv 2010.11929), `config` all that can be chosen, `names` the sizes."""
