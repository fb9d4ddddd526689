"""Stop programs cleanly on signals, start and recognise processes, and run worker processes that answer questions.

`stoppable` surrounds a whole program: after a signal, the program prints a line and exits with 128 + the signal's
number. `Deferral` postpones this, so that work can continue to a point from which it can be resumed. A signal that is
ignored when the program starts, as under `nohup`, stays ignored.

`python` returns the command that starts a process. `is_same` recognises a process by its id and its start time, because
systems reuse ids.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.machinery import ExtensionFileLoader
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

from vitkit.errors import Interrupted
from vitkit.system import environment

_SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK") if hasattr(signal, name))
# Checked now, because a stream is no longer a terminal after a hang-up.
_TERMINALS = tuple(stream for stream in (0, 1, 2) if os.isatty(stream))
_COMPILED = {getattr(ExtensionFileLoader, name).__code__ for name in ("create_module", "exec_module")}
_AGAIN = 0.05  # seconds until a signal that could not be answered is sent again
_Handler = Callable[[int, FrameType | None], Any]


@contextmanager
def stoppable() -> Iterator[None]:
    """Within a `with` block around a whole program, let a signal raise `Interrupted` and end the program.

    Raises:
        SystemExit: a signal arrived; the exit code is 128 + its number. A line is printed to stderr first.
    """
    handlers = _SignalHandlers()
    handlers.listen()
    heed_stop_file()
    try:
        yield
    except BaseException as error:
        number = error.signal_number if isinstance(error, Interrupted) else handlers.received
        if number is None or isinstance(error, SystemExit):
            raise
        with suppress(OSError):  # the terminal may have hung up
            print(f"stopped by {signal.Signals(number).name}", file=sys.stderr, flush=True)
        raise SystemExit(128 + number) from None
    finally:
        handlers.leave()


class _SignalHandlers:
    """Signal handlers that raise `Interrupted` in the main thread."""

    def __init__(self) -> None:
        self.received: int | None = None
        self._unraisable = sys.unraisablehook

    def listen(self) -> None:
        self._listening = _listen(self._receive)
        sys.unraisablehook = self._answer_unraisable

    def leave(self) -> None:
        """Restore the previous handlers.

        Python's own handler of Ctrl-C, which raises `KeyboardInterrupt`, is replaced by the system's default. The
        interpreter is about to exit, and Ctrl-C may then end the process without a traceback.
        """
        sys.unraisablehook = self._unraisable
        for number, before in self._listening.items():
            signal.signal(number, signal.SIG_DFL if before is signal.default_int_handler else before)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        caller = frame
        while caller is not None:
            if caller.f_code in _COMPILED:  # an import of a compiled library, which would crash or raise another error
                _send_again(number)
                return
            caller = caller.f_back
        self.received = number
        _detach_terminal(number)
        raise Interrupted(number)

    def _answer_unraisable(self, unraisable: Any) -> None:
        """Send a signal again if it raised `Interrupted` in a destructor, because Python discards exceptions there."""
        if isinstance(unraisable.exc_value, Interrupted):
            _send_again(unraisable.exc_value.signal_number)
        else:
            self._unraisable(unraisable)


class Deferral:
    """A context manager that records a signal during work that can be stopped only at certain points.

    A recorded signal raises `Interrupted` at the end of the `with` block, even if the block raises another error. A
    second signal raises `Interrupted` at once.

    Args:
        echo: the number of seconds after the first signal during which further signals are ignored, because they are
            probably copies of it. Copies occur if a terminal sends a signal to all processes of a program, and a
            launcher passes it on to them.

    Attributes:
        received: the number of the recorded signal; None if there was no signal.
    """

    def __init__(self, echo: float = 0.0) -> None:
        self.received: int | None = None
        self._echo, self._since = echo, 0.0
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
            if time.monotonic() - self._since < self._echo:
                return
            raise Interrupted(number)
        self.received, self._since = number, time.monotonic()
        _detach_terminal(number)


def _listen(handler: _Handler) -> dict[int, Any]:
    """Set a handler for all signals that stop programs and are not ignored, and return the previous handlers."""
    if threading.current_thread() is not threading.main_thread():  # Python allows handlers only there
        return {}
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    answered = {number: previous for number, previous in before.items() if previous not in (signal.SIG_IGN, None)}
    for number in answered:
        signal.signal(number, handler)
    return answered


def _send_again(number: int) -> None:
    timer = threading.Timer(_AGAIN, send_here, (number,))
    timer.daemon = True
    timer.start()


def send_here(number: int) -> None:
    """Send a signal to this process. Any thread may call this; the main thread handles the signal."""
    if environment.IS_WINDOWS:  # on Windows, `os.kill` ends a process without running its handlers
        signal.raise_signal(number)
    else:
        os.kill(os.getpid(), number)


STOP_FILE = "VITKIT_STOP_FILE"  # an environment variable
_LOOKING = 0.5  # seconds between checks for the file


def request_stop(process: int, file: Path) -> None:
    """Ask a process to save its work and end.

    The process receives SIGTERM. On Windows, `file` is created instead, for which the process looks (`heed_stop_file`).
    """
    if environment.IS_WINDOWS:
        file.touch()
    else:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGTERM)


def heed_stop_file() -> None:
    """Start a thread that sends SIGTERM to this process as soon as a file exists.

    The path of the file is in the environment variable VITKIT_STOP_FILE. If it is not set, no thread is started.
    """
    name = os.environ.pop(STOP_FILE, "")  # removed, so that child processes do not inherit it
    if not name:
        return

    def look() -> None:
        while not Path(name).exists():
            time.sleep(_LOOKING)
        send_here(signal.SIGTERM)

    threading.Thread(target=look, daemon=True).start()


def detached() -> dict[str, Any]:
    """Return arguments for `subprocess.Popen` that start a process which outlives this process and its terminal."""
    if sys.platform == "win32":
        return {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP | subprocess.CREATE_NO_WINDOW}
    return {"start_new_session": True}


def _detach_terminal(number: int) -> None:
    if number != getattr(signal, "SIGHUP", None):
        return
    # The terminal was closed: without this, writing to it would fail, and the program could not end cleanly.
    with suppress(OSError):
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in _TERMINALS:
            os.dup2(nowhere, stream)


def _leave_to_parent() -> None:
    """Remove this module's handlers in a forked process, which leaves Ctrl-C to its parent."""
    for number in _SIGNALS:
        if isinstance(getattr(signal.getsignal(number), "__self__", None), (_SignalHandlers, Deferral)):
            signal.signal(number, signal.SIG_IGN if number == signal.SIGINT else signal.SIG_DFL)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_parent)

_PROC = Path("/proc")
_RUN = (
    "import sys; sys.path[:] = {path!r}; import os, runpy; os.environ['PYTHONSAFEPATH'] = '1'; "
    "runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"
)


def python(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module of vitkit in an interpreter that does not import from the current folder.

    `python -m` and `python -c` import from the current folder first. The current folder may be any folder of
    photographs, and a file `queue.py` there would replace the module of the standard library.

    Args:
        module: the full name of the module; `vitkit` is the command line.
        arguments: the arguments of the program.
    """
    here = os.path.realpath(os.curdir)
    named = [os.path.abspath(entry) for entry in sys.path if isinstance(entry, str) and entry]  # noqa: PTH100
    path = [entry for entry in named if os.path.realpath(entry) != here]
    home = str(Path(__file__).parents[2])
    if os.path.realpath(home) == here:  # vitkit itself is in the current folder
        path.append(home)
    return [sys.executable, "-P", "-c", _RUN.format(path=path, module=module), *arguments]


def python_script(path: Path) -> list[str]:
    """Return the command that runs a script of vitkit, which imports from its own folder."""
    return [sys.executable, str(path)]


def is_same(process: int, birth: str) -> bool:
    """Return whether a process with this id and start time (`birth_of`) still runs and belongs to this user.

    Returns False if the system does not report start times, because another process may have the same id by now.
    """
    if process <= 1 or not birth or birth_of(process) != birth:
        return False
    with suppress(OSError, AttributeError):  # the process has ended; Windows lacks user ids
        return not _PROC.is_dir() or (_PROC / str(process)).stat().st_uid == os.getuid()
    return False


def birth_of(process: int) -> str:
    """Return the start time of a process as the system reports it. Id and start time together identify a process.

    Returns an empty string if there is no such process, if it has ended, or if the system does not report start times.
    """
    if (_PROC / "self" / "stat").is_file():
        with suppress(OSError, IndexError):
            stored = (_PROC / str(process) / "stat").read_text(encoding="utf-8", errors="replace")
            fields = stored.rpartition(")")[2].split()
            boot = (_PROC / "sys" / "kernel" / "random" / "boot_id").read_text(encoding="ascii").strip()
            return "" if fields[0] in ("Z", "X") else f"{fields[19]} of {boot}"  # proc(5): state, starttime
        return ""
    import psutil

    with suppress(psutil.Error):
        seen = psutil.Process(process)
        return "" if seen.status() == psutil.STATUS_ZOMBIE else str(seen.create_time())
    return ""


# --- Workers --------------------------------------------------------------------------------------------------

# A worker process answers questions over a pipe, one at a time. It is started as a new program. Forking would not be
# safe in a process with threads, and the spawn method of `multiprocessing` would import a user's script a second time
# and thereby run it again. A worker ends when its pipe is closed. Therefore no worker is left if its parent process is
# killed.

_END = object()


class Worker:
    """A process that runs a module of vitkit. The module must call `answer_questions`.

    Args:
        module: the full name of the module.
        environment: environment variables to set in addition to those of this process.
        is_quiet: whether to discard what the worker prints to stderr.
        is_detached: whether the worker does not receive Ctrl-C from the terminal of this process.
    """

    def __init__(
        self,
        module: str,
        *,
        environment: Mapping[str, str] | None = None,
        is_quiet: bool = False,
        is_detached: bool = False,
    ) -> None:
        self._process = subprocess.Popen(  # noqa: S603  # this program
            python(module),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL if is_quiet else None,
            env={**os.environ, **(environment or {})},
            **(detached() if is_detached else {}),
        )

    def ask(self, question: Any) -> Any:
        """Send a question and return the answer. Both can be any objects that can be pickled.

        If the worker has ended, an EOFError, OSError or pickle.PickleError is raised.
        """
        import pickle

        assert self._process.stdin is not None and self._process.stdout is not None
        pickle.dump(question, self._process.stdin)
        self._process.stdin.flush()
        return pickle.load(self._process.stdout)  # noqa: S301  # from our process

    def close(self) -> None:
        """Close the pipe. The worker finishes its current answer and ends; `wait` waits for that."""
        with suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()

    def wait(self) -> None:
        """Wait until the worker has ended."""
        with self._process:
            self._process.wait()


def answer_questions(answer: Callable[[Any], Any], *, stops_at_end: bool = False) -> None:
    """Answer questions of the parent process until the pipe is closed.

    Args:
        answer: a function that takes a question and returns the answer.
        stops_at_end: whether an answer in progress is stopped by SIGTERM when the pipe is closed.
    """
    import pickle  # imported here, so that commands without workers start faster
    from queue import SimpleQueue

    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # output that a library prints is not an answer
    pipe = os.fdopen(os.dup(sys.stdin.fileno()), "rb", buffering=0)
    # A process that is forked from this one closes its sys.stdin, and would wait forever for the thread that reads it.
    sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115, PTH123
    questions: SimpleQueue[Any] = SimpleQueue()
    is_busy = threading.Event()

    def read() -> None:
        with suppress(EOFError, OSError, pickle.PickleError):
            while True:
                questions.put(pickle.load(pipe))  # noqa: S301  # from the process that started this one
        questions.put(_END)
        if stops_at_end and is_busy.is_set():
            send_here(signal.SIGTERM)

    threading.Thread(target=read, daemon=True).start()
    while (question := questions.get()) is not _END:
        is_busy.set()
        reply = answer(question)
        is_busy.clear()
        try:
            pickle.dump(reply, answers)
            answers.flush()
        except BrokenPipeError:
            return
