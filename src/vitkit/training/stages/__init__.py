"""The stages through which a `Run` passes, each in a file that bears its name.

`training/run.py` lists them in order: open, examine, split, resolve, fit, calibrate, evaluate, report. Each stage is a
function of the run. It adds what it finds to the run, and writes what a person needs or what resuming needs.
"""
