"""The command line: one small module per verb. Heavy imports happen inside the verbs."""
