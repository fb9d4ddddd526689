"""The command line: commands are made from the functions that they call.

Open `commands` first: a row a verb, with what a terminal alone needs. `flags` makes arguments, flags and help from a
function's signature and docstring, `app` is the program with its errors and exit codes, `predict` prints rows as they
come, `progress` and `say` write to the terminal. Heavy imports happen inside the verbs.
"""
