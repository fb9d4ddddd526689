"""A program that serves, and the clients of benchmarks/clients.py."""

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import runs

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from clients import Tally, ask_all, posted, resident  # in that folder

__all__ = ["Program", "Tally", "ask_all", "counted", "posted", "resident", "serving"]


@dataclass
class Program:
    """A `vitkit serve` of its own."""

    process: subprocess.Popen[str]
    url: str = ""

    @property
    def address(self) -> tuple[str, int]:
        host, port = self.url.removeprefix("http://").split(":")
        return host, int(port)

    def end(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        """Its exit code and what it wrote on stderr."""
        self.process.send_signal(number)
        _, told = self.process.communicate(timeout=60)
        return self.process.returncode, told


@contextmanager
def serving(vitkit: str, *arguments: object, **environment: str) -> Iterator[Program]:
    """A program that answers, on a free port."""
    process = subprocess.Popen(
        [vitkit, "serve", *map(str, arguments), "--port", "0"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**runs.environment(), **environment},
    )  # fmt: skip
    try:
        line = process.stdout.readline()
        found = re.match(r"serving at (http://\S+)", line)
        if found is None:
            process.kill()
            raise AssertionError(line + process.communicate()[1])
        yield Program(process, found[1])
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def counted(url: str, line: str) -> float:
    """A number of /metrics."""
    import httpx

    found = re.search(rf"^{re.escape(line)} (\S+)$", httpx.get(f"{url}/metrics", timeout=60).text, re.M)
    return float(found[1]) if found else 0.0
