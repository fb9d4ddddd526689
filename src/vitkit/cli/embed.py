"""`vitkit embed`: what a model sees in images, as vectors; and the images that are most like one."""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from vitkit.cli.arguments import ModelSource, find_pictures, load_model
from vitkit.cli.say import say
from vitkit.errors import VitkitError
from vitkit.text.cells import harmless
from vitkit.verbs.inputs import source_folders
from vitkit.verbs.places import check_out, sole_out

if TYPE_CHECKING:
    import numpy.typing as npt

    from vitkit.classifier import Classifier, Features


def embed(
    model: ModelSource,
    sources: Annotated[list[str], typer.Argument(metavar="SRC...", help="Images, folders (walked), or patterns.")],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write to this .npz file.")] = None,
    what: Annotated[
        Literal["head", "class", "mean", "patches"],
        typer.Option("--what", help="What the head reads, the class token, the patches' mean, or every patch."),
    ] = "head",
    near: Annotated[Path | None, typer.Option("--near", help="List the images most like this one.")] = None,
    top: Annotated[int, typer.Option("--top", min=1, help="With --near: how many.")] = 5,
    batch_size: Annotated[int, typer.Option("--batch-size", min=1, help="Images at a time.")] = 32,
    force: Annotated[bool, typer.Option("--force", help="Write over --out.")] = False,
) -> None:
    """Features of each image, from the same pixels as predictions; an .npz file with paths, features and errors.

    Example: vitkit embed runs/digits-1 photos -o features.npz
    """
    _check(out, near, what, sources)
    paths, _ = find_pictures(sources)
    with sole_out(out, force=force):
        classifier = load_model(model)
        found = _embed(classifier, paths, what, batch_size)
        if out is not None:
            _write(out, found, what)
    if near is not None:
        ((_, query),) = classifier.embed([near], what)
        if isinstance(query, str):
            raise VitkitError(f"--near {near}: {query}")
        _print_nearest(query, found, top)


class _Found:
    """The features of images as they come, in one array from the first of them on.

    Attributes:
        paths: of the images that could be read.
        errors: the paths of the others, and why they could not.
    """

    def __init__(self, images: int) -> None:
        self.paths: list[str] = []
        self.errors: list[tuple[str, str]] = []
        self._images = images
        self._array: npt.NDArray[Any] | None = None

    def add(self, path: str, outcome: npt.NDArray[Any] | str) -> None:
        if isinstance(outcome, str):
            self.errors.append((path, outcome))
            return
        if self._array is None:
            import numpy as np

            self._array = np.empty((self._images, *outcome.shape), outcome.dtype)
        self._array[len(self.paths)] = outcome
        self.paths.append(path)

    @property
    def features(self) -> npt.NDArray[Any]:
        """Of `paths`, (n, ...)."""
        assert self._array is not None
        return self._array[: len(self.paths)]


def _check(out: Path | None, near: Path | None, what: str, sources: list[str]) -> None:
    if out is None and near is None:
        raise VitkitError("say where to: --out FILE.npz; or what to look for: --near IMAGE")
    if near is not None and what == "patches":
        raise VitkitError("--near compares one vector an image: --what head, class or mean, not patches")
    if near is not None and not near.is_file():
        raise VitkitError(f"--near {near}: no such file")
    if out is not None:
        check_out(out, (".npz",), source_folders(sources))


def _embed(classifier: Classifier, paths: list[str], what: Features, batch_size: int) -> _Found:
    from vitkit.cli.progress import Bar

    found = _Found(len(paths))
    with Bar() as bar:
        for done, (path, outcome) in enumerate(classifier.embed(paths, what, batch_size), start=1):
            found.add(path, outcome)
            bar("embedding", done, len(paths))
    if not found.paths:
        raise VitkitError(f"none of the {len(paths)} images can be read; the first: {found.errors[0][1]}")
    return found


def _write(out: Path, found: _Found, what: str) -> None:
    import numpy as np

    from vitkit.system.files import replacing

    with replacing(out) as temporary, temporary.open("wb") as file:
        np.savez(
            file,
            paths=np.array(found.paths),
            features=found.features,
            what=np.array(what),
            unreadable=np.array([path for path, _ in found.errors], dtype=str),
            errors=np.array([reason for _, reason in found.errors], dtype=str),
        )
    shape = "x".join(map(str, found.features.shape))
    images = len(found.paths) + len(found.errors)
    say(f"{images} images ({len(found.errors)} unreadable), eager, float32: {shape} features in {out}")


def _print_nearest(query: npt.NDArray[Any], found: _Found, top: int) -> None:
    """By cosine similarity, the most alike first."""
    import numpy as np

    vectors = found.features
    similarity = vectors @ query / (np.linalg.norm(vectors, axis=1) * np.linalg.norm(query))
    rows = csv.writer(sys.stdout, lineterminator="\n")
    rows.writerow(("path", "similarity"))
    for i in np.argsort(-similarity, kind="stable")[:top]:
        rows.writerow((harmless(found.paths[i]), f"{similarity[i]:.6f}"))
