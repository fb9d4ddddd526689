"""The names and shapes of tensors in published checkpoints, with one module per publisher."""
