"""Find problems that would spoil a training run, such as unreadable files, leaks between splits and tiny classes."""
