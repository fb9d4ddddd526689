"""Pages and pictures of what was computed elsewhere. Nothing here computes a figure or changes a model."""
