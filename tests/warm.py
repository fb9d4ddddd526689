"""Programs that begin as `vitkit` and `python` do, without the seconds that a fresh interpreter spends on imports.

`vitkit()` and `python()` are paths of executables. A server, which has imported what vitkit needs and done nothing
else, forks for each call: the child has the caller's arguments, folder, environment and streams, and ends as an
interpreter does. The executable stands for the child: it passes signals on, ends as the child ended, and takes it along
when it is killed; who waits for that reads the child's stdout to its end. A caller that leads a process group stands
for one of the child's: a signal goes to all of that, and so does its own death.
With BLANK_PICTURES in its environment a program draws none (blank.py), and with WARM_PYTHON, the path of `python()`,
the processes that it starts begin warm, too.

Tests of imports and of a program's start start real interpreters.
"""

from __future__ import annotations

import contextlib
import marshal
import os
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

_CLIENT = Path(__file__).with_name("warm_client.py")
_PROGRAMS = ("vitkit", "python")
_STREAMS = (0, 1, 2)


class Call(NamedTuple):
    """What is to be run, and where."""

    program: str  # vitkit or python
    arguments: tuple[str, ...]
    folder: str
    environment: dict[str, str]
    leads: bool  # a process group of its own


# --- For tests --------------------------------------------------------------------------------------


def vitkit() -> str:
    """Takes the place of the environment's `vitkit`."""
    return _executable("vitkit")


def python() -> str:
    """Takes the place of its `python`, for `-c CODE`, `-m MODULE` and scripts, after -u or -P."""
    return _executable("python")


def starting() -> Callable[..., list[str]]:
    """Takes the place of `vitkit.system.processes.python_command`: what it starts begins warm."""
    from vitkit.system import processes

    plain = processes.python_command
    return lambda module, *arguments: [python(), *plain(module, *arguments)[1:]]


def share() -> None:
    """Start a server for the processes that this one starts; it imports while they do."""
    os.environ[_SHARED] = str(_start())


_SHARED = "WARM_FOLDER"  # of the server that the parent has started
_servers: list[subprocess.Popen[bytes]] = []  # the last is asked
_folder: list[Path] = []  # of the server that is asked
_starting = threading.Lock()  # a thread that comes while another starts the server waits for it


def _executable(program: str) -> str:
    """Its path. The server is the parent's, or is started with the first call, or anew where it has ended."""
    with _starting:
        if not _folder and _SHARED in os.environ:
            _folder.append(Path(os.environ[_SHARED]))
        if not _folder or not _listens(_folder[-1]):
            _folder.append(_start())
        return str(_folder[-1] / program)


def _listens(folder: Path) -> bool:
    """Whether the server is there, be it that it still imports."""
    with socket.socket(socket.AF_UNIX) as caller, contextlib.suppress(OSError):
        caller.connect(str(folder / "socket"))
        return True
    return False


def _start() -> Path:
    """Start a server that ends with this process, and return the folder with its executables."""
    import atexit
    import shlex
    import subprocess
    import tempfile

    folder = Path(tempfile.mkdtemp(prefix="warm"))  # under a short path, as a socket's has about 100 characters at most
    for program in _PROGRAMS:
        client = shlex.join([sys.executable, "-IS", str(_CLIENT), str(folder / "socket"), program])
        (folder / program).write_text(f'#!/bin/sh\nexec {client} "$@"\n', encoding="utf-8")
        (folder / program).chmod(0o755)
    server = subprocess.Popen(
        [sys.executable, __file__, str(folder / "socket")],
        env=os.environ | {"MPLBACKEND": "Agg", "OMP_NUM_THREADS": "1"}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        start_new_session=True,  # a test that signals its own process group does not mean it
    )  # fmt: skip
    _servers.append(server)
    atexit.register(_stop, server, folder)
    assert server.stdout is not None and server.stdout.readline() == b"ready\n", "the server did not start"
    return folder


def _stop(server: subprocess.Popen[bytes], folder: Path) -> None:
    import shutil

    with server:
        pass
    shutil.rmtree(folder)


# --- The server -------------------------------------------------------------------------------------


def serve(address: str) -> Call:
    """Fork for every call until stdin closes, and return in a process that is to run the call.

    Each child's caller has a connection: signals for the child come on it, and the child's end goes back.
    """
    import gc
    import select

    # A background job of a shell ignores the first, and one of nohup the second; so would every program.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen(64)
        os.write(1, b"ready\n")  # who calls now waits until all is imported
        gc.disable()  # what is imported stays
        if "WARM_WITH_NOTHING" not in os.environ:
            _import_all()
        _leave_nothing_to_undo()
        gc.collect()
        gc.freeze()  # pages that no collection visits stay shared
        gc.enable()
        _make_pages_huge()
        told, tells = socket.socketpair()  # of children that have ended
        tells.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(tells.fileno(), warn_on_full_buffer=False)
        children: dict[int, Child] = {}
        while True:
            by_caller = {child.caller: child for child in children.values() if child.caller.fileno() >= 0}
            ready = select.select([listener, told, 0, *by_caller], [], [])[0]
            if 0 in ready:
                break
            for caller in ready:
                if caller in by_caller:
                    _hear(by_caller[caller])
            if told in ready:
                told.recv(64)
                _bury(children)
            if listener in ready:
                caller, _ = listener.accept()
                asked, streams = _request(caller)
                child = os.fork() if asked else -1
                if child == 0:
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    for own in (told, tells, caller, *by_caller):
                        own.close()
                    return _with_streams(asked, streams)
                for stream in streams:
                    os.close(stream)
                if asked and asked.leads:
                    with contextlib.suppress(PermissionError):  # who of the two comes first is open; it may have begun
                        os.setpgid(child, child)
                if asked:
                    children[child] = Child(child, caller, asked.leads)
                else:
                    caller.close()
        for own in children.values():
            own.send(signal.SIGKILL)
        os._exit(0)


class Child(NamedTuple):
    """A program that runs, and who waits for it."""

    process: int
    caller: socket.socket
    leads: bool  # a process group of its own

    def send(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):  # its group may just have ended
            (os.killpg if self.leads else os.kill)(self.process, number)


def _hear(child: Child) -> None:
    """Pass on a signal from the caller, or its end."""
    with contextlib.suppress(ConnectionError):
        if number := child.caller.recv(1):
            child.send(number[0])
            return
    child.caller.close()
    child.send(signal.SIGKILL)


def _bury(children: dict[int, Child]) -> None:
    """Collect the children that have ended, and tell their callers how."""
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            caller = children.pop(ended[0]).caller
            with contextlib.suppress(OSError):  # nobody may be there any more
                caller.sendall(str(os.waitstatus_to_exitcode(ended[1])).encode())
            caller.close()


def _request(caller: socket.socket) -> tuple[Call | None, list[int]]:
    """What is to be run, or None where the caller has been killed, and its streams."""
    length, request, streams = 0, b"", list[int]()
    with contextlib.suppress(ConnectionError):  # its end must not be the server's
        size, streams, _, _ = socket.recv_fds(caller, 8, len(_STREAMS))
        length = int.from_bytes(size, "big")
        request = caller.recv(length, socket.MSG_WAITALL) if length else b""
    return (Call(*marshal.loads(request)) if 0 < length == len(request) else None), streams


def _with_streams(asked: Call, streams: list[int]) -> Call:
    for own, stream in zip(streams, _STREAMS, strict=True):
        os.dup2(own, stream)
        os.close(own)
    if asked.leads:
        os.setpgid(0, 0)
    return asked


def _import_all() -> None:
    """What a command imports when it comes to it; none of it starts a thread, which a fork would lose."""
    import importlib
    import pkgutil

    import blank  # noqa: F401
    import vitkit

    sys.path.pop(0)  # the folder of the tests
    sys.modules["torchmetrics"] = None  # type: ignore[assignment] # seconds; Fabric looks for it and can do without
    for module in pkgutil.walk_packages(vitkit.__path__, "vitkit."):
        if module.name != "vitkit.training.lightning_module":  # which no command imports
            importlib.import_module(module.name)
    for name in ("lightning_fabric", "torchvision", "matplotlib.figure", "torch.distributed.run"):
        importlib.import_module(name)


def _make_pages_huge() -> None:
    """Gather the memory in pages of 2 MB where Linux does that: a fork copies a list of all pages."""
    import ctypes

    if sys.platform != "linux":
        return
    madvise, collapse, size = ctypes.CDLL(None).madvise, 25, 1 << 21  # MADV_COLLAPSE, of Linux 6.1
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        place, rights, *_, name = [*line.split(maxsplit=5), ""][:6]
        if rights == "rw-p" and name in ("", "[heap]"):
            first, end = (int(part, 16) for part in place.split("-"))
            for start in range(-(-first // size) * size, end - size + 1, size):
                madvise(start, size, collapse)


def _leave_nothing_to_undo() -> None:
    """What the imports would take apart at the end of an interpreter is left, as all else is."""
    import weakref

    for own in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        own.atexit = False


def become(asked: Call) -> NoReturn:
    """Run the program in this process, and end it as an interpreter ends."""
    import atexit

    code = 0
    try:
        _set_up(asked)
        _run(asked)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        code = 128 + signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)  # not by taking each module apart, which takes longer than most programs


def _set_up(asked: Call) -> None:
    import warnings

    import torch

    os.fsync = lambda _: None  # as in the tests themselves
    os.chdir(asked.folder)
    os.environ.clear()
    os.environ.update(asked.environment)
    encoding, _, errors = asked.environment.get("PYTHONIOENCODING", "utf-8").partition(":")
    answers = {"stdin": "strict", "stdout": errors or sys.stdout.errors or "strict", "stderr": "backslashreplace"}
    for number, (name, own) in enumerate(answers.items()):
        mode, buffering = ("w" if number else "r"), (1 if number == 2 else -1)
        stream = open(number, mode, buffering, encoding=encoding, errors=own, closefd=False)  # noqa: SIM115
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    sys.executable = asked.environment.get("WARM_PYTHON", sys.executable)
    warnings.filterwarnings("ignore", ".* found in sys.modules", RuntimeWarning)  # of runpy
    if "BLANK_PICTURES" in asked.environment:
        sys.modules["blank"].blank(setattr)
    threads = int(asked.environment.get("OMP_NUM_THREADS") or os.cpu_count() or 1)
    if threads != torch.get_num_threads():
        torch.set_num_threads(threads)


def _run(asked: Call) -> None:
    import runpy
    import types

    is_safe = "-P" in asked.arguments[:1]
    sys.argv = [argument for argument in asked.arguments[:1] if argument not in ("-u", "-P")] + [*asked.arguments[1:]]
    if asked.program == "vitkit":
        sys.argv.insert(0, str(Path(sys.prefix) / "bin" / "vitkit"))
        runpy.run_path(sys.argv[0], run_name="__main__")
    elif sys.argv[0] == "-c":
        code = sys.argv.pop(1)
        if not is_safe:
            sys.path.insert(0, "")
        sys.modules["__main__"] = main = types.ModuleType("__main__")
        exec(compile(code, "<string>", "exec"), main.__dict__)
    elif sys.argv[0] == "-m":
        sys.path.insert(0, "")
        runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, str(Path(sys.argv[0]).parent))
        runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    become(serve(sys.argv[1]))
