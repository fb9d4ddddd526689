"""Stop programs cleanly on signals, start and recognise processes, and call functions in worker processes.

`stoppable` surrounds a whole program: after a signal, the program prints a line and exits with 128 + the signal's
number. `Deferral` postpones this, so that work can continue to a point from which it can be resumed. A signal that is
ignored when the program starts, as under `nohup`, stays ignored.

`python_command` returns the command that starts a process. `is_same_process` recognises a process by its id and its
start time, because systems reuse ids. `Worker` runs a function in another process.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

from vitkit.errors import Interrupted
from vitkit.system import environment

_SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK") if hasattr(signal, name))
# Determined at the start, because a stream is no longer a terminal after a hang-up.
_TERMINALS = tuple(stream for stream in (0, 1, 2) if os.isatty(stream))


@contextmanager
def stoppable() -> Iterator[None]:
    """End a whole program cleanly after a signal, which raises `Interrupted` in this `with` block.

    Raises:
        SystemExit: a signal arrived; the exit code is 128 + its number. A line is printed to stderr first.
    """
    received: list[int] = []  # kept, because a library may raise an error of its own instead of `Interrupted`

    def receive(number: int, _: FrameType | None) -> None:
        received.append(number)
        _detach_terminal(number)
        raise Interrupted(number)

    previous = _set_handlers(receive)
    watch_stop_file()
    try:
        yield
    except BaseException as error:
        numbers = [error.signal_number] if isinstance(error, Interrupted) else received
        if not numbers or isinstance(error, SystemExit):
            raise
        with suppress(OSError):  # the terminal may have hung up
            print(f"stopped by {signal.Signals(numbers[-1]).name}", file=sys.stderr, flush=True)
        raise SystemExit(128 + numbers[-1]) from None
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


class Deferral:
    """A context manager that records a signal during work that can be stopped only at certain points.

    A recorded signal raises `Interrupted` at the end of the `with` block, even if the block raises another error. A
    second signal raises `Interrupted` at once.

    Args:
        echo: the number of seconds after the first signal during which further signals are ignored as copies of it.
            Copies occur if a terminal sends a signal to all processes of a program, and a launcher also passes it on.

    Attributes:
        received: the number of the recorded signal; None if there was no signal.
    """

    def __init__(self, echo: float = 0.0) -> None:
        self.received: int | None = None
        self._echo, self._received_at = echo, 0.0
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Self:
        self._previous = _set_handlers(self._receive)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        if self.received is not None and not isinstance(error, Interrupted):
            raise Interrupted(self.received) from error

    def _receive(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        if self.received is not None:
            if time.monotonic() - self._received_at < self._echo:
                return
            raise Interrupted(number)
        self.received, self._received_at = number, time.monotonic()
        _detach_terminal(number)


def _set_handlers(handler: Callable[[int, FrameType | None], Any]) -> dict[int, Any]:
    """Set a handler for all signals that stop programs and are not ignored. Return the previous handlers by signal.

    In other threads than the main thread, where Python allows no handlers, nothing is set.
    """
    previous: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for number in _SIGNALS:
            if signal.getsignal(number) not in (signal.SIG_IGN, None):
                previous[number] = signal.signal(number, handler)
    return previous


def signal_this_process(number: int) -> None:
    """Send a signal to this process. Any thread may call this; the main thread handles the signal."""
    if environment.IS_WINDOWS:  # on Windows, `os.kill` ends a process without running its handlers
        signal.raise_signal(number)
    else:
        os.kill(os.getpid(), number)


STOP_FILE = "VITKIT_STOP_FILE"  # an environment variable
_CHECK_INTERVAL = 0.5  # seconds between checks for the file


def request_stop(process: int, file: Path) -> None:
    """Ask a process to save its work and end.

    It receives SIGTERM. On Windows, `file` is created instead, for which the process waits (`watch_stop_file`).
    """
    if environment.IS_WINDOWS:
        file.touch()
    else:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGTERM)


def watch_stop_file() -> None:
    """Start a thread that sends SIGTERM to this process as soon as a file exists.

    The path of the file is in the environment variable VITKIT_STOP_FILE. If it is not set, no thread is started.
    """
    name = os.environ.pop(STOP_FILE, "")  # removed, so that child processes do not inherit it
    if not name:
        return

    def watch() -> None:
        while not Path(name).exists():
            time.sleep(_CHECK_INTERVAL)
        signal_this_process(signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


def detached_options() -> dict[str, Any]:
    """Return arguments for `subprocess.Popen` that start a process which outlives this process and its terminal."""
    if sys.platform == "win32":
        return {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP | subprocess.CREATE_NO_WINDOW}
    return {"start_new_session": True}


def _detach_terminal(number: int) -> None:
    """After a hang-up, discard what is printed. Writing to the closed terminal would fail and prevent a clean end."""
    if number != getattr(signal, "SIGHUP", None):
        return
    with suppress(OSError):
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in _TERMINALS:
            os.dup2(nowhere, stream)


def _remove_in_child() -> None:
    """Remove this module's handlers in a forked process, and let it ignore Ctrl-C, which its parent handles."""
    for number in _SIGNALS:
        if getattr(signal.getsignal(number), "__module__", "") == __name__:
            signal.signal(number, signal.SIG_IGN if number == signal.SIGINT else signal.SIG_DFL)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_remove_in_child)

_PROC = Path("/proc")
_RUN = (
    "import sys; sys.path[:] = {path!r}; import os, runpy; os.environ['PYTHONSAFEPATH'] = '1'; "
    "runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"
)


def python_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module of vitkit, such as `vitkit` itself, the command line, with arguments.

    The interpreter does not import from the current folder, as `python -m` and `python -c` do. The current folder may
    be any folder of photographs, and a file `queue.py` there would replace the module of the standard library.
    """
    current = os.path.realpath(os.curdir)
    entries = [os.path.abspath(entry) for entry in sys.path if isinstance(entry, str) and entry]  # noqa: PTH100
    path = [entry for entry in entries if os.path.realpath(entry) != current]
    source = str(Path(__file__).parents[2])
    if os.path.realpath(source) == current:  # vitkit itself is in the current folder
        path.append(source)
    return [sys.executable, "-P", "-c", _RUN.format(path=path, module=module), *arguments]


def python_script(path: Path) -> list[str]:
    """Return the command that runs a script of vitkit, which imports from its own folder."""
    return [sys.executable, str(path)]


def is_same_process(process: int, start_time: str) -> bool:
    """Return whether a process with this id and start time (`start_time_of`) still runs.

    Returns False if the system does not report start times, because another process may have the same id by now.
    """
    return process > 1 and bool(start_time) and start_time_of(process) == start_time


def start_time_of(process: int) -> str:
    """Return the start time of a process as the system reports it. Id and start time together identify a process.

    Returns an empty string if there is no such process, if it has ended, or if the system does not report start times.
    """
    if (_PROC / "self" / "stat").is_file():
        with suppress(OSError, IndexError):
            stored = (_PROC / str(process) / "stat").read_text(encoding="utf-8", errors="replace")
            fields = stored.rpartition(")")[2].split()  # the name of the program may contain spaces
            boot = (_PROC / "sys" / "kernel" / "random" / "boot_id").read_text(encoding="ascii").strip()
            return "" if fields[0] in ("Z", "X") else f"{fields[19]} of {boot}"  # proc(5): state, starttime
        return ""
    import psutil

    with suppress(psutil.Error):
        found = psutil.Process(process)
        return "" if found.status() == psutil.STATUS_ZOMBIE else str(found.create_time())
    return ""


# --- Workers --------------------------------------------------------------------------------------------------

# A worker process receives calls of one function over a pipe, and runs them one at a time. It is started as a new
# program. Forking would not be safe in a process with threads, and the spawn method of `multiprocessing` would import a
# user's script a second time and thereby run it again. A worker ends when its pipe is closed. Therefore no worker is
# left if its parent process is killed.


class Worker:
    """A process that runs a module of vitkit, which must call `serve_calls`.

    Args:
        module: the full name of the module.
        is_quiet: whether to discard what the worker prints to stderr.
    """

    def __init__(self, module: str, *, is_quiet: bool = False) -> None:
        self._process = subprocess.Popen(  # noqa: S603  # this program
            python_command(module),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL if is_quiet else None,
        )

    def call(self, argument: Any) -> Any:
        """Call the worker's function, and return its result. The argument and the result must be picklable.

        If the worker has ended, an EOFError, OSError or pickle.PickleError is raised.
        """
        import pickle

        assert self._process.stdin is not None and self._process.stdout is not None
        pickle.dump(argument, self._process.stdin)
        self._process.stdin.flush()
        return pickle.load(self._process.stdout)  # noqa: S301  # from our process

    def close(self) -> None:
        """Close the pipe. The worker finishes its current call and ends; `wait` waits for that."""
        with suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()

    def wait(self) -> None:
        """Wait until the worker has ended."""
        with self._process:
            self._process.wait()


def serve_calls(function: Callable[[Any], Any]) -> None:
    """Run `function` for each call of the parent process (`Worker.call`) until the pipe is closed."""
    import pickle  # imported here, so that commands without workers start faster

    results = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a library prints must not get between the results
    while True:
        try:
            argument = pickle.load(sys.stdin.buffer)  # noqa: S301  # from the process that started this one
        except (EOFError, OSError, pickle.PickleError):
            return
        result = function(argument)
        try:
            pickle.dump(result, results)
            results.flush()
        except BrokenPipeError:
            return
