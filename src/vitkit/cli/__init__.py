"""The command line. Each command is generated from a public function of vitkit.

Open `commands.py` first: its table lists the commands, each with its differences from the function. It also generates
arguments, flags and help from the function's signature and docstring. `app.py` is the program with its error messages
and exit codes. `say.py` writes text and progress to the terminal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitkit.system import lazily

if TYPE_CHECKING:
    from vitkit.cli.app import main
    from vitkit.cli.say import HARMLESS, prepare_streams
else:
    __getattr__ = lazily(__name__)
