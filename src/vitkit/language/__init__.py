"""Texts and images together: the text encoders of CLIP and SigLIP, their tokenizers, and classifiers without training.

Open `zero_shot.py` first: it turns the names of classes into a classifier. `text_files` reads text encoders from
checkpoints, `tokenizer` reads the vocabularies beside them.
"""
