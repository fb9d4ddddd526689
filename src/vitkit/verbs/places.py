"""Where verbs write: outside the photographs, as the only process that does, and over nothing unless told to."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from vitkit.errors import VitkitError
from vitkit.system.files import is_empty, sole, sole_in


def check_out(out: Path, suffixes: Collection[str], folders: Iterable[str]) -> None:
    """Whether --out can be a file of such a kind, outside the source folders.

    Raises:
        VitkitError: it cannot.
    """
    if out.suffix.lower() not in suffixes:
        raise VitkitError(f"--out {out} must end in {' or '.join(suffixes)}")
    if not out.parent.is_dir():
        raise VitkitError(f"--out {out}: there is no folder {out.parent}")
    if out.is_dir():
        raise VitkitError(f"--out {out} is a folder; name a file")
    check_outside("--out", out, folders)


@contextmanager
def sole_out(out: Path | None, *, force: bool) -> Iterator[None]:
    """Make a file as the only process that does, from before it is looked for until it is there; None: none is made.

    Raises:
        VitkitError: another process makes it, or it is there and is not to be written over.
    """
    if out is None:
        yield
        return
    with sole(out):
        if out.exists() and not force:
            raise VitkitError(f"--out {out} exists: choose a new name, or --force to write over it")
        yield


@contextmanager
def sole_out_folder(
    flag: str, path: Path | None, folders: Iterable[str], or_else: str, *, may_hold: bool
) -> Iterator[None]:
    """Write into a folder, outside the source folders, as the only process that does.

    Args:
        flag: by which it was named.
        path: the folder, there or not; None: none is written into.
        folders: of the sources.
        or_else: what else than another folder the user can choose, where something is in it.
        may_hold: whether something may be in it.

    Raises:
        VitkitError: it cannot be written into, or another process writes into it.
    """
    if path is None:
        yield
        return
    check_outside(flag, path, folders)
    if path.exists() and not path.is_dir():
        raise VitkitError(f"{flag} {path} is a file; name a folder")
    with sole_in(path):
        if not may_hold and not is_empty(path):
            raise VitkitError(f"{flag} {path} is not empty: choose a new folder, {or_else}")
        yield


def check_outside(flag: str, path: Path, folders: Iterable[str]) -> None:
    """Whether what is to be written lies outside the source folders.

    Raises:
        VitkitError: it would lie beside the photographs.
    """
    for folder in folders:
        if path.resolve().is_relative_to(Path(folder).resolve()):
            raise VitkitError(f"{flag} {path} lies in the source {folder}: nothing is written beside the photographs")
