"""What would spoil a training run: files that cannot be read, copies across splits, classes too small."""
