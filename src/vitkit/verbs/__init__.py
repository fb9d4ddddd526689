"""What vitkit does, one function a command: same parameters, defaults and decisions, and a result to look at.

`vitkit.train`, `vitkit.evaluate` and so on are these functions; the command line parses, calls and prints.
"""
