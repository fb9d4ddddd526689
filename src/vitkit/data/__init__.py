"""Photographs in: where they are, which are readable, how they are split, and how a file becomes pixels."""
