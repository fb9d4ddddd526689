"""`python opening.py PICTURE`: open one exported file after another, named on stdin, and answer about the picture.

A line of JSON on stdout for each: what came of it (`answered`, `refused`), or what should not have happened (`error`,
`acted`: something beside reading files and computing was done, as told by Python's audit hooks).
"""

import json
import os
import sys
import traceback
from typing import Any

import torch

from vitkit.errors import VitkitError
from vitkit.exporting import load_exported

# What a file may make nobody do: start a process, open a connection, unpickle, load a library, change the file system.
_FORBIDDEN = (
    "os.system os.exec os.fork os.forkpty os.posix_spawn os.spawn os.startfile subprocess.Popen pty.spawn "
    "pickle.find_class marshal.loads socket.connect socket.bind ctypes.dlopen os.remove os.rename os.rmdir os.mkdir "
    "os.link os.symlink os.chmod os.chown os.truncate os.putenv shutil.rmtree urllib.Request webbrowser.open"
)
FORBIDDEN = frozenset(_FORBIDDEN.split())


class Watch:
    """Notes what is done while a file is open."""

    def __init__(self) -> None:
        self.acts: list[str] = []
        self.is_on = False
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.is_on:
            return
        writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if event in FORBIDDEN or writes:
            self.acts.append(f"{event} {arguments!r}"[:200])


def outcome(path: str, picture: str) -> tuple[str, str]:
    """What came of opening the file and asking it, and how it is said."""
    try:
        ((_, answer),) = load_exported(path, "auto").stream([picture])
    except VitkitError as error:
        return "refused", str(error)
    except Exception:  # the very thing that is looked for
        return "error", traceback.format_exc()
    return ("refused", answer) if isinstance(answer, str) else ("answered", f"{float(answer.sum()):.3f}")


def main(picture: str) -> None:
    """Until stdin ends; the first file opened is one of ours, whose libraries are loaded unwatched."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # runtimes may write to stdout
    repr(torch.zeros(1))  # which loads modules of torch's own, as an error that names a tensor would
    watch = Watch()
    for number, line in enumerate(sys.stdin):
        watch.acts.clear()
        watch.is_on = number > 0
        kind, text = outcome(line.rstrip("\n"), picture)
        watch.is_on = False
        if watch.acts:
            kind, text = "acted", "; ".join(watch.acts)
        print(json.dumps([kind, text]), file=answers, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
