"""The stages through which a `Run` passes, each in a file that bears its name; `training/run.py` lists them in order.

Each is a function of the run. It adds its results to the run, and writes what people need or what resuming needs.
"""
