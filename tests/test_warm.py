"""A program that a warmed server starts is, to who calls it, like one of a fresh interpreter."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import warm

REAL = {"python": sys.executable, "vitkit": str(Path(sys.executable).with_name("vitkit"))}


def both(program: str, *arguments: str, **options: object) -> list[subprocess.CompletedProcess[bytes]]:
    ways = (REAL[program], {"python": warm.python, "vitkit": warm.vitkit}[program]())
    return [subprocess.run([way, *arguments], capture_output=True, check=False, **options) for way in ways]  # type: ignore[call-overload]


def assert_same(real: subprocess.CompletedProcess[bytes], warmed: subprocess.CompletedProcess[bytes]) -> None:
    assert (warmed.returncode, warmed.stdout, warmed.stderr) == (real.returncode, real.stdout, real.stderr)


def gone(pid: int) -> bool:
    """Whether a process is, at last: the server collects it after it has passed the answer on."""
    deadline = time.monotonic() + 10
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    return not Path(f"/proc/{pid}").exists()


SEEN = """
import os, sys
print(sys.argv, os.getcwd(), sys.stdin.read(), sorted(os.environ.items()))
print('e', file=sys.stderr)
"""


def test_it_has_its_callers_arguments_folder_environment_and_streams(tmp_path: Path) -> None:
    own = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", "A": "b c", "NOT_UTF8": os.fsdecode(b"\xff")}
    environment = own | {"PWD": str(tmp_path)}  # which a shell that is started without it sets
    real, warmed = both("python", "-c", SEEN, "x", "y z", cwd=tmp_path, env=environment, input=b"given")
    assert warmed.stdout == real.stdout
    assert warmed.stderr == real.stderr == b"e\n"


@pytest.mark.parametrize(
    "code",
    [
        "raise SystemExit('said')",
        "import threading, time; threading.Thread(target=lambda: (time.sleep(0.1), print('thread'))).start()",
        "import atexit; atexit.register(print, 'after'); raise SystemExit(7)",
    ],
)
def test_it_ends_as_any(code: str) -> None:
    assert_same(*both("python", "-c", code))


WAIT = """
import os, signal, sys, time
signal.signal(signal.SIGINT, lambda *_: sys.exit("interrupted"))
print(os.getpid(), flush=True)
for _ in range(1200):  # a signal that arrives just before one long sleep would be noticed only after it
    time.sleep(0.05)
"""


def started(code: str = WAIT, *arguments: str, **options: Any) -> tuple[subprocess.Popen[str], int]:
    """A warm program, and the number that it says first."""
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options}
    process: subprocess.Popen[str] = subprocess.Popen([warm.python(), "-c", code, *arguments], **pipes)
    return process, int(process.stdout.readline())  # type: ignore[union-attr]


WITH_A_CHILD = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]])
try:
    while True:  # `wait` alone would give the child a quarter of a second to answer
        time.sleep(0.01)
except KeyboardInterrupt:
    child.wait()
    raise
"""


def test_signals_to_a_group_reach_the_childs_group() -> None:
    process, child = started(WITH_A_CHILD, WAIT, start_new_session=True)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert "interrupted\n" in err and "KeyboardInterrupt" in err, "the child answers, and so does its parent"
    assert gone(child)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_killed_it_is_gone_when_its_output_has_ended(number: signal.Signals) -> None:
    process, pid = started()
    process.send_signal(number)
    process.communicate(timeout=30)
    assert process.returncode == -number
    assert gone(pid)
