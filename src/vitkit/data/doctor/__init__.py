"""Find what would spoil a training run: unreadable files, copies across splits, classes that are too small."""
