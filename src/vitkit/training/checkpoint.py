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

from vitkit.data.table import ImageTable
from vitkit.errors import VitkitError
from vitkit.system.files import replacing
from vitkit.training.recipe import Recipe

_LENGTH = 64  # of the checksum, which is the archive's comment
_SHOWN = 4  # differences
_DIGITS = 12  # of a digest

# Fields of the recipe that may change between: the weights would come out as they would have, or further on.
_PLACES = ("data", "weights", "teacher")  # what is there has a digest, or is in the state
_SPLITTING = (
    "layout",
    "labels",
    "split",
    "split_from",
    "group_by",
    "folds",
    "max_images",
)  # split.json has the outcome
_LENGTH_OF_IT = ("epochs", "time", "patience", "keep")
_COMPUTING = (
    "logger",
    "precision",
    "device",
    "devices",
    "nodes",
    "strategy",
    "checkpointing",
    "compile",
    "cache",
    "workers",
)
_BEFORE_AND_AFTER = ("find_lr", "prior")
MAY_CHANGE = {*_PLACES, *_SPLITTING, *_LENGTH_OF_IT, *_COMPUTING, *_BEFORE_AND_AFTER}


def identity(
    recipe: Recipe, table: ImageTable, contents: Mapping[str, str], teacher: str | None = None
) -> dict[str, Any]:
    """What a run cannot go on without: all that decides which weights it leads to.

    Args:
        recipe: of the run.
        table: its images, split.
        contents: a digest of each by its path, as far as it is known: files may have moved since.
        teacher: a digest of the one that the run imitates.
    """
    fields = {name: value for name, value in vars(recipe).items() if name not in MAY_CHANGE}
    if recipe.swa:
        fields["epochs"] = recipe.epochs  # which says when averaging begins
    images = [table.splits.count(name) for name in ("train", "val", "test")]
    digest = hashlib.sha256()
    for i, (path, split) in enumerate(zip(table.paths, table.splits, strict=True)):
        digest.update(repr((split, table.name_of(i), contents.get(path))).encode())
    pictures = digest.hexdigest()[:_DIGITS]
    imitated = None if teacher is None else teacher[:_DIGITS]
    return {**fields, "classes": len(table.classes), "images": images, "pictures": pictures, "teacher": imitated}


def save(state: Mapping[str, Any], path: Path) -> None:
    """Write the state of a training, whole or not at all.

    Raises:
        OSError: it cannot be written; the error names `path`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with replacing(path) as temporary:
            with temporary.open("wb") as file:  # given its name alone, torch does not say what went wrong
                torch.save(dict(state), file)
            seal(temporary)
    except (OSError, RuntimeError) as error:
        cause = error if isinstance(error, OSError) else error.__context__  # which torch covers up by one of its own
        if not isinstance(cause, OSError):
            raise
        raise OSError(cause.errno, cause.strerror or str(cause), str(path)) from error


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
        rest = [f"and {len(changed) - _SHOWN} more"] if len(changed) > _SHOWN else []
        told = "; ".join([*changed[:_SHOWN], *rest])
        raise VitkitError(
            f"{path} is of another run, or the recipe was changed since: it has {told};"
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
