"""Pre-training without labels: a network learns to predict hidden parts of images, and its encoder is saved.

Open `pretrain.py` first: it runs a pre-training from the data to the report. `objectives.py` has the two
objectives, `network.py` has their common parts, and `options.py` has their settings.
"""
