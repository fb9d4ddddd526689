"""Find problems in data that would spoil a training run: unreadable files, leaks between splits, tiny classes."""
