"""How fast a model runs on this machine, beside others and beside what the machine's matrix products allow."""
