"""The Vision Transformer of the paper (arXiv 2010.11929), its variants, and networks of other libraries.

Open `vit.py` first: it is the paper, equation by equation. `config.py` holds every architectural choice, `names.py` the
names that stand for configurations, and `build.py` creates a model from either. The layers are in `layers.py`,
`position.py` and `hybrids.py`; `network.py` wraps models of torchvision and timm.
"""
