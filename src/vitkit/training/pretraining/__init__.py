"""Pre-training without labels: a network learns to fill in hidden parts of images, and its encoder is kept.

Open `pretrain.py` first: it runs a pre-training from the data to the report. `objectives.py` has the two
objectives, `options.py` has their settings, and `network.py` what they have in common.
"""
