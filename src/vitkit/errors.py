"""The exceptions that are addressed to the person at the keyboard."""

from __future__ import annotations

import errno

NOT_FINITE = "the model's answer is not finite: its weights are damaged, or too large for this precision"


class VitkitError(ValueError):
    """Something the user can change: the message names it, says what was expected and what to do.

    The command line prints the message alone and exits with code 2; `--debug` shows the traceback.
    """


def first_line(error: BaseException) -> str:
    """What an exception of somebody else's says, in one line; its kind where it says nothing."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


class ShortageError(VitkitError):
    """The machine has too little memory, or too many files open, for now; what it was asked is not to blame."""


_FEW_FILES = (errno.EMFILE, errno.ENFILE)
_SIGNS = ("out of memory", "can't allocate memory", "not enough memory")


def is_memory_short(error: BaseException) -> bool:
    """Whether an error says that memory ran out, on a GPU or in main memory."""
    if isinstance(error, OSError) and error.errno == errno.ENOMEM:
        return True
    return isinstance(error, MemoryError) or (
        isinstance(error, (RuntimeError, OSError)) and any(sign in str(error).lower() for sign in _SIGNS)
    )


def are_files_short(error: BaseException) -> bool:
    """Whether an error says that this process, or the machine, has as many files open as it may."""
    return isinstance(error, OSError) and error.errno in _FEW_FILES


class UnansweredError(VitkitError):
    """A model computed numbers for an image that are not finite, which is no answer."""


class Interrupted(BaseException):  # not an error: somebody asked for it
    """The user or the machine asked the work to stop, and it stopped in good order.

    As with `KeyboardInterrupt`, nobody who catches errors catches it. The command line exits with
    128 + `signal_number`: 130 after Ctrl-C.
    """

    def __init__(self, signal_number: int) -> None:
        super().__init__(f"stopped by signal {signal_number}")
        self.signal_number = signal_number
