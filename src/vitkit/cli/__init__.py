"""The command line, whose commands are made from the functions that they call.

Open `commands.py` first: it has a row for each command, with what only a terminal needs. `flags.py` makes arguments,
flags and help from a function's signature and docstring. `app.py` is the program with its errors and exit codes,
`predict.py` prints predictions while they are computed, and `progress.py` and `say.py` write to the terminal.
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
