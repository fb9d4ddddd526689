"""How each publisher names and shapes the tensors of a checkpoint: one module per publisher."""
