"""The command line; commands are made from the functions that they call.

Open `commands.py` first: its table has a row for each command, with what differs from the function. `flags.py` makes
arguments, flags and help from a function's signature and docstring. `app.py` is the program with its error messages and
exit codes. `predict.py` prints predictions while they are computed, and `say.py` writes text and progress to the
terminal.
"""

from __future__ import annotations

from vitkit.system.lazy import public

__all__, __getattr__ = public(
    __name__,
    {
        "app": "function_of main",
        "say": "HARMLESS prepare_streams",
    },
)
