"""What a model costs (parameters, multiply-accumulates, memory), and how fast it runs on this machine."""
