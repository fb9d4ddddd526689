"""Signals that ask a program to stop: it stops in good order, says so, and exits with 128 + the signal's number.

A signal that is ignored when the program starts, as under `nohup`, stays so.

Processes of vitkit: how they are started, and how one is recognised by more than its number, which is used again.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.machinery import ExtensionFileLoader
from pathlib import Path
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


_PROC = Path("/proc")
_RUN = (
    "import sys; sys.path[:] = {path!r}; import os, runpy; os.environ['PYTHONSAFEPATH'] = '1'; "
    "runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"
)


def python(module: str, *arguments: str) -> list[str]:
    """The command that runs a module of vitkit as a program, in an interpreter that imports nothing from where it runs.

    `python -m` and `python -c` import from the current folder first, which is often a folder of photographs: a
    `queue.py` in there, whosever it is, would run in the place of the standard library's.

    Args:
        module: its full name; `vitkit` is the command line.
        arguments: of the program.
    """
    return [sys.executable, "-P", "-c", _RUN.format(path=_safe_path(), module=module), *arguments]


def _safe_path() -> list[str]:
    """Where this process imports from, without the current folder, but in the end for vitkit itself."""
    here = os.path.realpath(os.curdir)
    named = [os.path.abspath(entry) for entry in sys.path if isinstance(entry, str) and entry]  # noqa: PTH100
    path = [entry for entry in named if os.path.realpath(entry) != here]
    home = str(Path(__file__).parents[2])
    return path if os.path.realpath(home) != here else [*path, home]


def is_same(process: int, birth: str) -> bool:
    """Whether the process that began then (`birth_of`) still has this number, and is this user's.

    Where the system cannot tell when a process began, none is: a number alone may be any process's.
    """
    if process <= 1 or not birth or birth_of(process) != birth:
        return False
    with suppress(OSError, AttributeError):  # no such process by now; Windows has no users of this kind
        return not _PROC.is_dir() or (_PROC / str(process)).stat().st_uid == os.getuid()
    return False


def birth_of(process: int) -> str:
    """When a process began, as the system tells it: another one that gets its number later began at another time.

    Empty where there is no such process, where it has ended and only its number is left, or where the system cannot
    tell.
    """
    if (_PROC / "self" / "stat").is_file():
        with suppress(OSError, IndexError):
            fields = (_PROC / str(process) / "stat").read_text(errors="replace").rpartition(")")[2].split()
            boot = (_PROC / "sys" / "kernel" / "random" / "boot_id").read_text().strip()
            return "" if fields[0] in ("Z", "X") else f"{fields[19]} of {boot}"  # proc(5): state, starttime
        return ""
    with suppress(OSError, subprocess.SubprocessError):
        asked = ["ps", "-o", "lstart=", "-p", str(process)]
        return subprocess.run(asked, capture_output=True, text=True, timeout=5, check=False).stdout.strip()  # noqa: S603
    return ""
