"""A job for a Ray cluster whose worker is killed in its middle."""

import os
import signal
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitkit.errors import VitkitError


@dataclass(frozen=True)
class Dying:
    """The images are numbers, and their values are the squares. The worker is killed once, at the image `at`.

    The folder `seen` gets a file for each image that is computed, with the process that did it.
    """

    seen: Path
    at: str

    def start(self, computation: Mapping[str, Any] | None) -> tuple[Mapping[str, Any], Any]:
        return {"backend": "none"} if computation is None else computation, self.compute

    def compute(self, images: Iterable[str]) -> Iterator[tuple[str, int]]:
        for image in images:
            if image == self.at and not (self.seen / "death").exists():
                (self.seen / "death").touch()
                os.kill(os.getpid(), signal.SIGKILL)
            (self.seen / f"{image} by {os.getpid()}").touch()
            yield image, int(image) ** 2


def refuse(computation: Mapping[str, Any] | None) -> tuple[Mapping[str, Any], Any]:
    raise VitkitError("there is no such model on this machine")
