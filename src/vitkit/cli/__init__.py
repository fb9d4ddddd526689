"""The command line. Each command is generated from a public function of vitkit.

Open `commands.py` first: its table lists the commands, each with its differences from the function. It also generates
arguments, flags and help from the function's signature and docstring. `app.py` is the program with its error messages
and exit codes. `say.py` writes text and progress to the terminal.
"""

from __future__ import annotations

from vitkit.system import public

__all__, __getattr__ = public(
    __name__,
    {
        "app": "function_of main",
        "say": "HARMLESS prepare_streams",
    },
)
