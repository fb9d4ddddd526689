"""Signals: each ends a program in good order, where it may be; those that are ignored stay so."""

import fcntl
import os
import signal
import subprocess
import sys
import termios
import textwrap
from pathlib import Path

import pytest

import vitkit
from vitkit.errors import Interrupted
from vitkit.system import Deferral

SOURCE = Path(vitkit.__file__).parents[1]


def outcome(body: str, number: int, *before: int) -> tuple[int, str, str]:
    """What becomes of a program that does this; `me` sends itself the signal, those of `before` are ignored."""
    lines = [
        "import os, signal, sys",
        *(f"signal.signal({int(own)}, signal.SIG_IGN)" for own in before),
        "from vitkit.system.processes import stoppable, Deferral",
        f"me = lambda: os.kill(os.getpid(), {int(number)})",
        "with stoppable():",
        textwrap.indent(textwrap.dedent(body), "    "),
    ]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)], env=os.environ | {"PYTHONPATH": str(SOURCE)},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_program_with_its_code_and_a_line(number: signal.Signals) -> None:
    out = outcome(
        "try:\n    me()\n    print('on')\nexcept Exception:\n    print('caught')\nfinally: print('end')", number
    )
    assert out == (128 + number, "end\n", f"stopped by {number.name}\n")


def test_a_signal_that_is_ignored_at_the_start_stays_so() -> None:
    number = signal.SIGHUP
    assert outcome("with Deferral():\n    me()\nme()\nprint('on')", number, number) == (0, "on\n", "")


def test_a_signal_of_which_a_library_makes_another_error_is_answered() -> None:
    body = "try: me()\nexcept BaseException as error: raise ImportError('numpy failed') from error"
    assert outcome(body, signal.SIGTERM) == (143, "", "stopped by SIGTERM\n")


def test_a_terminal_that_hangs_up_takes_no_line_and_is_no_error() -> None:
    """A shell's child on a terminal of its own, whose other end is closed."""
    code = "from vitkit.system.processes import *\nimport time\n"
    code += "with stoppable():\n    print('on', flush=True)\n    time.sleep(20)"
    ours, its = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": str(SOURCE)}, stdin=its, stdout=its, stderr=its,
        start_new_session=True, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )  # fmt: skip
    os.close(its)
    said = b""
    while b"on" not in said:
        said += os.read(ours, 10)
    os.close(ours)
    assert process.wait(timeout=30) == 129


def test_a_helping_process_leaves_ctrl_c_to_its_parent() -> None:
    body = """
    import time
    with Deferral():
        child = os.fork()
        if child == 0:
            os.kill(os.getpid(), signal.SIGINT)
            os._exit(7)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    assert outcome(body, signal.SIGTERM) == (0, "7\n", "")


def test_a_deferred_signal_waits_for_the_end_of_the_block() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        before, done = signal.getsignal(number), []
        with pytest.raises(Interrupted) as caught, Deferral() as stop:
            os.kill(os.getpid(), number)
            done.append(stop.received)
            raise SystemExit(0)
        assert done == [number] == [caught.value.signal_number]
        assert signal.getsignal(number) is before
    with pytest.raises(KeyError), Deferral() as stop:  # without a signal it ends as it does
        raise KeyError
    assert stop.received is None


def test_a_signal_that_a_launcher_passes_on_is_the_same_signal() -> None:
    with pytest.raises(Interrupted), Deferral(echo=60.0) as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.received == signal.SIGTERM
        stop._echo = 0.0
        os.kill(os.getpid(), signal.SIGTERM)
        pytest.fail("a later one is answered at once")
