"""Pre-training without labels: a network learns to fill in what is hidden of a picture, and its encoder is kept."""
