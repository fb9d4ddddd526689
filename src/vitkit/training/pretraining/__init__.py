"""Pre-training without labels: a network learns to predict hidden parts of images, and its encoder is saved.

Open `pretrain.py` first: it runs a pre-training from the data to the report. `objectives.py` has the network and the
two objectives, and `options.py` has their settings.
"""
