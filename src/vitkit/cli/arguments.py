"""Arguments that several verbs share."""

from __future__ import annotations

import glob
import sys
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from vitkit.cli.say import say
from vitkit.errors import VitkitError
from vitkit.system.files import is_empty, sole, sole_in

if TYPE_CHECKING:
    from vitkit.classifier import Classifier

Backend = Literal["auto", "eager", "compile", "openvino", "onnx"]  # as in `inference.backends.base`, which loads torch
Precision = Literal["auto", "float32", "bfloat16"]
Plan = Literal[
    "auto", "plain", "folded-fused", "folded-batch", "folded-image", "packed-fused", "packed-batch", "packed-image"
]
ModelSource = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="Run or model folder, checkpoint of any published layout, exported file, or published name.",
    ),
]


EXPORTED = (".onnx", ".xml", ".pt2")  # as `vitkit.exporting` writes them

BackendName = Annotated[
    Backend, typer.Option("--backend", help="What computes; auto: the fastest that is installed and worth its start.")
]
PrecisionName = Annotated[
    Precision, typer.Option("--precision", help="auto: bfloat16 where the hardware multiplies such numbers.")
]
DataRoot = Annotated[
    Path | None,
    typer.Option("--data-root", help="The folder that holds the run's images now, under these or other names."),
]
PlanName = Annotated[
    Plan,
    typer.Option("--plan", help="How eager computes in bfloat16 on a CPU; auto: the fastest, as measured here once."),
]
MergeNumber = Annotated[
    int,
    typer.Option(
        "--merge",
        min=0,
        help="Merge so many patches with others in every layer: quicker, a little less accurate (arXiv 2210.09461).",
    ),
]

FolderLayout = Annotated[
    Literal["auto", "classes", "splits"],
    typer.Option("--layout", help="Whether the folders in DATA are classes or splits; auto: told by their names."),
]


def find_pictures(sources: Iterable[str]) -> tuple[list[str], bool]:
    """The image files that SRC... names, and whether all that it names could be looked into; if not, stderr says so."""
    from vitkit.data.walk import Overlooked, find_images

    overlooked = Overlooked()
    paths = find_images(sources, overlooked)
    for line in overlooked.lines():
        tell(line)
    return paths, not overlooked.closed


def load_model(source: str) -> Classifier:
    """The classifier that a MODEL argument names; what had to be assumed of it is said on stderr."""
    if Path(source).suffix.lower() in EXPORTED:
        from vitkit.exporting import load_exported

        return load_exported(source)
    from vitkit.cli.progress import Bar
    from vitkit.weights import load

    with Bar() as bar:
        classifier = load(source, progress=bar)
    tell_assumed(classifier)
    return classifier


def tell(line: str) -> None:
    """A line beside the answers, on stderr."""
    say(f"note: {line}", file=sys.stderr)


def tell_assumed(classifier: Classifier) -> None:
    """Say on stderr what had to be assumed of a loaded checkpoint."""
    assert classifier.report is not None
    for name, taken in classifier.report.assumed.items():
        say(f"note: {name} assumed: {taken}", file=sys.stderr)


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


def source_folders(sources: Iterable[str]) -> list[str]:
    """The folders among SRC..., and those that its patterns match."""
    named = (
        name
        for source in sources
        for name in ([source] if Path(source).exists() else glob.glob(source, recursive=True))  # noqa: PTH207
    )
    return [name for name in named if Path(name).is_dir()]
