"""`vitkit.embed`: what a model sees in images, as vectors; and the images that are most like one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from vitkit.errors import VitkitError
from vitkit.inference.features import Features
from vitkit.system.environment import DeviceName
from vitkit.system.progress import Progress, Say, ignore, progress, silent
from vitkit.text.arguments import check_arguments
from vitkit.text.cells import harmless, record
from vitkit.text.fields import Between
from vitkit.verbs.inputs import (
    PREPROCESS,
    check_choice,
    check_out,
    find_pictures,
    given_labels,
    open_model,
    path_of,
    sole_out,
    source_folders,
    split_sources,
)
from vitkit.verbs.result import Notes, Result

if TYPE_CHECKING:
    import numpy.typing as npt

    from vitkit.classifier import Classifier, Sources
    from vitkit.data.in_memory import Source
    from vitkit.weights.preprocessing import PreprocessLike

What = Features


@dataclass(frozen=True, repr=False, eq=False)
class Embeddings(Result):
    """What a model sees in images.

    Attributes:
        paths: of the images that could be read, in order.
        features: of each of them, (n, D); of `patches` (n, h * w, D).
        what: of what they are features: `head`, `class`, `mean` or `patches`.
        errors: why each of the other images could not be read, by path.
        nearest: the images most like the one that was asked for, by cosine similarity, the most alike first.
        out: the file that they are in; None: in none.
        notes: what was assumed of the model, and where images were not looked for.
        labels: what the label file says of each of `paths`, empty where it says nothing; None: there was no such file.
    """

    paths: tuple[str, ...]
    features: npt.NDArray[Any]
    what: What
    errors: dict[str, str]
    nearest: tuple[tuple[str, float], ...] = ()
    out: Path | None = None
    notes: tuple[str, ...] = ()
    labels: tuple[str, ...] | None = None

    def __len__(self) -> int:
        return len(self.paths)

    def to_dict(self) -> dict[str, Any]:
        """The features as lists, and all else."""
        nearest = [{"path": path, "similarity": similarity} for path, similarity in self.nearest]
        own = {"paths": list(self.paths), "features": self.features.tolist(), "what": self.what}
        own |= {} if self.labels is None else {"labels": list(self.labels)}
        return {**own, "errors": self.errors, "nearest": nearest, "notes": list(self.notes)}

    def lines(self) -> list[str]:
        """What there is in the file, if one was written; and the images most alike, as CSV."""
        told = [f"{self._described()} in {self.out}"] if self.out is not None else []
        return told + ([record(("path", "similarity")), *map(_near_record, self.nearest)] if self.nearest else [])

    def _described(self) -> str:
        shape, images = "x".join(map(str, self.features.shape)), len(self.paths) + len(self.errors)
        return f"{images} images ({len(self.errors)} unreadable), eager, float32: {shape} features"

    def __repr__(self) -> str:
        return f"<Embeddings: {self._described()}>"

    def _repr_html_(self) -> str:
        from vitkit.text.html import table

        rows = [[escape(path), f"{similarity:.6f}"] for path, similarity in self.nearest]
        return f"<p>{escape(self._described())}</p>" + (table(rows, ("path", "similarity")) if rows else "")


@check_arguments
def embed(
    model: str | Path | Classifier,
    sources: str | Sources,
    *,
    out: Path | str | None = None,
    what: What = "head",
    near: Path | str | None = None,
    labels: Path | str | None = None,
    top: Annotated[int, Between(1)] = 5,
    preprocess: Annotated[str | PreprocessLike | None, PREPROCESS] = None,
    batch_size: Annotated[int, Between(1)] = 32,
    device: DeviceName = "auto",
    force: bool = False,
    note: Say = ignore,
    progress: Progress = silent,
) -> Embeddings:
    """Features of each image, from the same pixels as predictions; an .npz file with paths, features and errors.

        import vitkit

        found = vitkit.embed("runs/digits-1", "docs/pictures", near="docs/pictures/nine.png")
        print(found.features.shape, found.nearest)

    On the command line: `vitkit embed runs/digits-1 photos -o features.npz`.

    Args:
        model: run or model folder, checkpoint of any published layout, or published name. A classifier in memory will
            do, too.
        sources: images, folders (walked), or patterns. Or pictures in memory, as for `vitkit.predict`; one or several.
        out: write to this .npz file. It has the arrays paths, features, what, unreadable and errors; with `labels` also
            labels.
        what: `head`, what the head reads; `class`, the class token; `mean`, the patches' mean; `patches`, every patch.
        near: find the images most like this one.
        labels: label file: images that it leaves out are left out, and the others have the labels that it gives them.
        top: with `near`: how many, at least 1.
        preprocess: how images are read, where the model does not say it: settings such as
            `resize=256,crop=224,interpolation=bilinear,mean=0.5,std=0.5`, whose weights they are (google, augreg, deit,
            torchvision or dinov2), or a JSON file that says it. As of `vitkit.load`.
        batch_size: images at a time, at least 1.
        device: `cpu`, `cuda` or `mps`, where it is computed; `auto`: a CUDA GPU if there is one, else the CPU.
        force: write over `out`.
        note: told each of the result's notes as it comes.
        progress: told what is being done, how many are done, of how many.

    Raises:
        VitkitError: a value is not allowed, the model cannot be loaded or has no such features, there is no image that
            can be read, or `out` is there already or another process writes it.
        OSError: `out` cannot be written.
    """
    names, held = split_sources(sources)
    if held and labels is not None:
        raise VitkitError("--labels is about files, and these are pictures in memory")
    out, near = path_of(out), path_of(near)
    check_choice("--what", what, What)
    check_choice("--device", device, DeviceName)
    _check(out, near, what, names)
    notes = Notes(note)
    paths = [own.name for own in held] or find_pictures(names, notes)[0]
    given = None if labels is None else given_labels(paths, labels, source_folders(names), notes)
    paths = paths if given is None else list(given)
    if not paths:
        raise VitkitError("there is no image to embed: name some")
    with sole_out(out, force=force):
        classifier = open_model(model, notes, device, preprocess)
        classifier.preprocess.check_known()
        found = _embed(classifier, held or paths, what, batch_size)
        named_so = None if given is None else tuple(given[path] for path in found.paths)
        if out is not None:
            _write(out, found, what, named_so)
    nearest = () if near is None else _nearest(_query(classifier, near, what), found, top)
    told = (nearest, out, tuple(notes.lines), named_so)
    return Embeddings(tuple(found.paths), found.features, what, dict(found.errors), *told)


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
    if near is not None and what == "patches":
        raise VitkitError("--near compares one vector an image: --what head, class or mean, not patches")
    if near is not None and not near.is_file():
        raise VitkitError(f"--near {near}: no such file")
    if out is not None:
        check_out(out, (".npz",), source_folders(sources))


def _embed(classifier: Classifier, images: Sequence[Source], what: What, batch_size: int) -> _Found:
    found = _Found(len(images))
    for done, (path, outcome) in enumerate(classifier.embed(images, what, batch_size), start=1):
        found.add(path, outcome)
        progress("embedding", done, len(images))
    if not found.paths:
        raise VitkitError(f"none of the {len(images)} images can be read; the first: {found.errors[0][1]}")
    return found


def _write(out: Path, found: _Found, what: str, labels: tuple[str, ...] | None) -> None:
    import numpy as np

    from vitkit.system.files import replacing

    more: dict[str, Any] = {} if labels is None else {"labels": np.array(labels, dtype=str)}
    with replacing(out) as temporary, temporary.open("wb") as file:
        np.savez(
            file,
            paths=np.array(found.paths),
            features=found.features,
            what=np.array(what),
            unreadable=np.array([path for path, _ in found.errors], dtype=str),
            errors=np.array([reason for _, reason in found.errors], dtype=str),
            **more,
        )


def _query(classifier: Classifier, near: Path, what: What) -> npt.NDArray[Any]:
    ((_, query),) = classifier.embed([near], what)
    if isinstance(query, str):
        raise VitkitError(f"--near {near}: {query}")
    return query


def _nearest(query: npt.NDArray[Any], found: _Found, top: int) -> tuple[tuple[str, float], ...]:
    """By cosine similarity, the most alike first."""
    import numpy as np

    vectors = found.features
    similarity = vectors @ query / (np.linalg.norm(vectors, axis=1) * np.linalg.norm(query))
    return tuple((found.paths[i], float(similarity[i])) for i in np.argsort(-similarity, kind="stable")[:top])


def _near_record(near: tuple[str, float]) -> str:
    path, similarity = near
    return record((harmless(path), f"{similarity:.6f}"))
