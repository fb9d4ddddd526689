"""Signals that ask a program to stop: it stops in good order, says so, and exits with 128 + the signal's number.

A signal that is ignored when the program starts, as under `nohup`, stays so.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.machinery import ExtensionFileLoader
from types import FrameType, TracebackType
from typing import Any, Self

from vitkit.errors import Interrupted

_SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
_TERMINALS = tuple(stream for stream in (0, 1, 2) if os.isatty(stream))  # now: one that is gone is no terminal
_COMPILED = {getattr(ExtensionFileLoader, name).__code__ for name in ("create_module", "exec_module")}
_AGAIN = 0.05  # seconds until a signal is sent anew that came where it could not be answered
_Handler = Callable[[int, FrameType | None], Any]


def name_of_signal(number: int) -> str:
    """SIGTERM and so on."""
    return signal.Signals(number).name


@contextmanager
def stoppable() -> Iterator[None]:
    """The whole of a program. A signal ends what it does with `Interrupted`, wherever it is, and then the program.

    Raises:
        SystemExit: with 128 + the signal's number, once the signal is told of on stderr.
    """
    program = _Program()
    program.listen()
    try:
        yield
    except BaseException as error:
        number = error.signal_number if isinstance(error, Interrupted) else program.received
        if number is None or isinstance(error, SystemExit):
            raise
        with suppress(OSError):  # the terminal may be what has gone
            print(f"stopped by {name_of_signal(number)}", file=sys.stderr, flush=True)
        raise SystemExit(128 + number) from None
    finally:
        program.leave()


class _Program:
    """Answers signals by raising `Interrupted` in the main thread."""

    def __init__(self) -> None:
        self.received: int | None = None
        self._unraisable = sys.unraisablehook

    def listen(self) -> None:
        self._listening = _listen(self._receive)
        sys.unraisablehook = self._answer_unraisable

    def leave(self) -> None:
        """What is left of the program is the interpreter's own end, which a signal may cut short without a word."""
        sys.unraisablehook = self._unraisable
        for number, before in self._listening.items():
            signal.signal(number, signal.SIG_DFL if before is signal.default_int_handler else before)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if _is_in_compiled_import(frame):  # where compiled libraries answer with a crash, or with another error
            _send_again(number)
            return
        self.received = number
        _let_go(number)
        raise Interrupted(number)

    def _answer_unraisable(self, unraisable: Any) -> None:
        """Python drops what is raised while an object is deleted: let the signal come once more."""
        if isinstance(unraisable.exc_value, Interrupted):
            _send_again(unraisable.exc_value.signal_number)
        else:
            self._unraisable(unraisable)


class Deferral:
    """Notes a signal, for work that stops only where it can go on from; a second signal raises `Interrupted` at once.

    When the block ends, however it does, a signal that came meanwhile raises `Interrupted`.

    Attributes:
        received: the signal's number; None as long as there was none.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._listening: dict[int, Any] = {}

    def __enter__(self) -> Self:
        self._listening = _listen(self._receive)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, before in self._listening.items():
            signal.signal(number, before)
        if self.received is not None and not isinstance(error, Interrupted):
            raise Interrupted(self.received) from error

    def _receive(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        if self.received is not None:
            raise Interrupted(number)
        self.received = number
        _let_go(number)


def _listen(handler: _Handler) -> dict[int, Any]:
    """Set the handler of every signal that is not ignored, and what answered each before."""
    if threading.current_thread() is not threading.main_thread():  # elsewhere Python allows no handlers
        return {}
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    answered = {number: own for number, own in before.items() if own not in (signal.SIG_IGN, None)}
    for number in answered:
        signal.signal(number, handler)
    return answered


def _is_in_compiled_import(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code in _COMPILED:
            return True
        frame = frame.f_back
    return False


def _send_again(number: int) -> None:
    timer = threading.Timer(_AGAIN, os.kill, (os.getpid(), number))
    timer.daemon = True
    timer.start()


def _let_go(number: int) -> None:
    """Write to nowhere what went to a terminal that has hung up: the program has still to end in good order."""
    if number != getattr(signal, "SIGHUP", None):
        return
    with suppress(OSError):
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in _TERMINALS:
            os.dup2(nowhere, stream)


def _leave_to_parent() -> None:
    """In a process that was forked to help: Ctrl-C reaches it too, but its parent says what becomes of the work."""
    for number in _SIGNALS:
        if isinstance(getattr(signal.getsignal(number), "__self__", None), (_Program, Deferral)):
            signal.signal(number, signal.SIG_IGN if number == signal.SIGINT else signal.SIG_DFL)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_parent)
