"""Worker processes that answer questions over a pipe, one at a time.

A worker is started as a new program. Forking would not be safe in a process with threads, and the spawn method of
`multiprocessing` would import a user's script a second time and thereby run it again.

A worker ends when its pipe is closed. Therefore no worker is left if its parent process is killed.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

from vitkit.system.stopping import detached, python, send_here

_END = object()


class Worker:
    """A process that runs a module of vitkit. The module must call `answer_questions`.

    Args:
        module: the full name of the module.
        environment: environment variables to set in addition to those of this process.
        is_quiet: whether to discard what the worker prints to stderr.
        is_detached: whether to protect the worker from Ctrl-C in the terminal of this process.
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

        Raises:
            EOFError: the worker has ended.
            OSError: the worker has ended.
            pickle.PickleError: the worker ended while it sent the answer, or the question cannot be pickled.
        """
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
        answer: takes a question and returns the answer.
        stops_at_end: whether to stop the current answer by SIGTERM when the pipe is closed.
    """
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
