"""last.ckpt, from which a run goes on: what tells that it is whole, and that it is of this run.

It ends in a checksum of all that stands before, where every reader of zip files passes it over.
"""

from __future__ import annotations

import hashlib
import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from vitkit.data.source import ImageTable
from vitkit.errors import VitkitError
from vitkit.train.recipe import Recipe

_LENGTH = 64  # of the checksum, which is the archive's comment
_SHAPING = ("model", "image_size", "method", "rank", "optimizer", "ema", "swa", "seed", "init")


def identity(recipe: Recipe, table: ImageTable) -> dict[str, Any]:
    """What a run cannot go on without: what decides the shape of its state, and how many images it is of."""
    shaping = {name: getattr(recipe, name) for name in _SHAPING}
    images = [table.splits.count(name) for name in ("train", "val", "test")]
    return {**shaping, "classes": len(table.classes), "images": images}


def seal(path: Path) -> None:
    """Put the checksum at the end of a file that `torch.save` wrote."""
    with path.open("rb+") as file:
        file.seek(-2, os.SEEK_END)
        if file.read() != b"\0\0":  # how long the comment is
            raise ValueError(f"{path} has a comment already")
        file.seek(-2, os.SEEK_END)
        file.write(_LENGTH.to_bytes(2, "little"))
        file.seek(0)
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        file.write(digest.encode())


def read(path: Path, own: Mapping[str, Any]) -> dict[str, Any]:
    """The state that is in a sealed file.

    Args:
        path: the file.
        own: the `identity` of the run that is to go on.

    Raises:
        VitkitError: it is damaged, or of another run.
    """
    try:
        _check(path)
        state = torch.load(path, map_location="cpu", weights_only=True)
        then = state["run"]
        if not isinstance(then, dict):
            raise ValueError("it names no run")
    except (RuntimeError, ValueError, pickle.UnpicklingError, EOFError, KeyError, TypeError) as error:
        raise VitkitError(f"{path} is damaged; delete it to train this run from its beginning") from error
    changed = [f"{name} {then.get(name)}, not {now}" for name, now in own.items() if then.get(name) != now]
    if changed:
        raise VitkitError(
            f"{path} is of another run, or the recipe was changed since: it has {'; '.join(changed)};"
            " put that back, or delete the file to train from the beginning"
        )
    return dict(state)


def _check(path: Path) -> None:
    digest, left = hashlib.sha256(), path.stat().st_size - _LENGTH
    with path.open("rb") as file:
        while left > 0 and (part := file.read(min(left, 2**20))):
            digest.update(part)
            left -= len(part)
        if file.read() != digest.hexdigest().encode():
            raise ValueError("its content does not match its checksum")
