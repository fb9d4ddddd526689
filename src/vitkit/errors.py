"""The one exception that is addressed to the person at the keyboard."""

from __future__ import annotations


class VitkitError(ValueError):
    """Something the user can change: the message names it, says what was expected and what to do.

    The command line prints the message alone and exits with code 2; `--debug` shows the traceback.
    """
