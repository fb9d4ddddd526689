"""The exceptions that vitkit raises, and functions that classify other exceptions."""

from __future__ import annotations

import errno

NOT_FINITE = "the model's output is not finite: its weights are damaged, or the precision is too low (try float32)"


class VitkitError(ValueError):
    """An error that the user can fix. The message says what is wrong, what was expected and what to do.

        >>> import vitkit
        >>> try:
        ...     vitkit.create_model("vit_base_patch16_225")
        ... except vitkit.VitkitError as error:
        ...     print(error)
        image_size 225x225 is not divisible by patch_size 16x16

    The command line prints only the message and exits with code 2; `--debug` shows the traceback.

    Attributes:
        code: the reason, as the package that raises the error and two or three words: `data.class-single`. A message
            may change in later versions, but a code does not, so programs compare codes.
    """

    def __init__(self, code: str, message: str | None = None) -> None:
        if message is None:  # PyTorch raises an error of a worker process again, from its message alone
            code, message = "unspecified", code
        super().__init__(code, message)
        self.code = code

    def __str__(self) -> str:
        """Return the message."""
        return self.args[1]


def first_line(error: BaseException) -> str:
    """Return the first line of an exception's message, or the exception's type if it has none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


class WrongTypeError(VitkitError, TypeError):
    """An argument or an option has a value of another type."""


class ShortageError(VitkitError):
    """The machine currently has too little free memory or too many open files. The request itself is valid."""


_OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "not enough memory")


def is_memory_short(error: BaseException) -> bool:
    """Return whether an error means that the memory of a GPU or of the machine ran out."""
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return True
    # Libraries also raise general exceptions, which only the text of the message distinguishes from others.
    return isinstance(error, (RuntimeError, OSError)) and any(text in str(error).lower() for text in _OUT_OF_MEMORY)


class UnansweredError(VitkitError):
    """The model's output for an image is not finite."""


class Interrupted(BaseException):
    """A signal has asked the program to stop.

    Like `KeyboardInterrupt`, it is not an `Exception`, so that error handlers do not catch it. The command line exits
    with 128 + `signal_number`: 130 after Ctrl-C.
    """

    def __init__(self, signal_number: int) -> None:
        super().__init__(f"stopped by signal {signal_number}")
        self.signal_number = signal_number
