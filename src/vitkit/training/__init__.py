"""Training: the choices (recipe), the steps (task, optim), the writing down (callbacks), and the run as a whole."""
