"""`vitkit.embed`: compute feature vectors of images, and find the images most similar to one."""

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
    exclusive_out,
    find_pictures,
    labels_by_path,
    open_model,
    path_of,
    source_folders,
    split_sources,
)
from vitkit.verbs.result import Notes, Result

if TYPE_CHECKING:
    import numpy.typing as npt

    from vitkit.classifier import Classifier, Sources
    from vitkit.data.in_memory import Source
    from vitkit.weights.preprocessing import PreprocessLike


@dataclass(frozen=True, repr=False, eq=False)
class Embeddings(Result):
    """The features of images.

        import vitkit

        embeddings = vitkit.embed("runs/digits-1", "photos")
        print(embeddings.features.shape, embeddings.errors)  # (n, D)

    Attributes:
        paths: the images that could be read, in order.
        features: the features of each of them, (n, D), or (n, h * w, D) for `patches`.
        what: the kind of features: `head`, `class`, `mean` or `patches`.
        errors: the reason why an image could not be read, by path.
        nearest: the images most similar to `near` and their cosine similarities, the most similar first.
        out: the file with the features; None if none was written.
        notes: assumptions about the model, and places that could not be searched for images.
        labels: the label of each of `paths` in the label file, empty if it has none; None without a label file.
    """

    paths: tuple[str, ...]
    features: npt.NDArray[Any]
    what: Features
    errors: dict[str, str]
    nearest: tuple[tuple[str, float], ...] = ()
    out: Path | None = None
    notes: tuple[str, ...] = ()
    labels: tuple[str, ...] | None = None

    def __len__(self) -> int:
        return len(self.paths)

    def to_dict(self) -> dict[str, Any]:
        """Return everything in plain JSON types; the features become lists."""
        nearest = [{"path": path, "similarity": similarity} for path, similarity in self.nearest]
        values = {"paths": list(self.paths), "features": self.features.tolist(), "what": self.what}
        values |= {} if self.labels is None else {"labels": list(self.labels)}
        return {**values, "errors": self.errors, "nearest": nearest, "notes": list(self.notes)}

    def lines(self) -> list[str]:
        """Return a description of the file, if one was written, and the most similar images as CSV."""
        written = [f"{self._described()} in {self.out}"] if self.out is not None else []
        if not self.nearest:
            return written
        rows = (record((harmless(path), f"{similarity:.6f}")) for path, similarity in self.nearest)
        return [*written, record(("path", "similarity")), *rows]

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
    what: Features = "head",
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
    """Compute the features of images, to save them in an .npz file or to find the images most similar to one.

    Images are decoded and preprocessed as for predictions.

        import vitkit

        embeddings = vitkit.embed("runs/digits-1", "docs/pictures", near="docs/pictures/nine.png")
        print(embeddings.features.shape, embeddings.nearest)

    On the command line: `vitkit embed runs/digits-1 photos -o features.npz`.

    Args:
        model: a run or model folder, a checkpoint of any published layout, or a published name. A classifier in memory
            is accepted, too.
        sources: images, folders (including their sub-folders), or patterns. One or several pictures in memory are
            accepted, too, as for `vitkit.predict`.
        out: write to this .npz file. Its arrays are paths, features, what, unreadable and errors, and with `labels`
            also labels.
        what: the kind of features: `head` is the input of the head, `class` the class token, `mean` the mean of the
            patches, and `patches` every patch.
        near: find the images most similar to this one.
        labels: a label file (CSV: path, label). Images that it excludes are left out, and the labels of the others are
            part of the result.
        top: with `near`, the number of images to list.
        preprocess: the preprocessing of images, if the model does not specify it or should use another: settings such
            as `resize=256,crop=224,interpolation=bilinear,mean=0.5,std=0.5`, the name of a publisher whose weights use
            it, such as `deit` or `google`, or a JSON file. See `vitkit.load`.
        batch_size: the number of images in a batch.
        device: the device to compute on: `cpu`, `cuda`, `mps`, or `auto` for a CUDA GPU if there is one, else the CPU.
        force: overwrite `out`.
        note: called with each of the result's notes as it arises.
        progress: called with the current task, the number of finished items and their total.

    Raises:
        VitkitError: a value is not allowed, the model cannot be loaded or has no such features, no image can be read,
            or `out` exists or is being written by another process.
        OSError: `out` cannot be written.
    """
    names, held = split_sources(sources)
    if held and labels is not None:
        raise VitkitError("--labels requires files, and these are pictures in memory")
    out, near = path_of(out), path_of(near)
    check_choice("--what", what, Features)
    check_choice("--device", device, DeviceName)
    _check(out, near, what, names)
    notes = Notes(note)
    paths = [picture.name for picture in held] or find_pictures(names, notes)[0]
    label_of = None if labels is None else labels_by_path(paths, labels, source_folders(names), notes)
    paths = paths if label_of is None else list(label_of)
    if not paths:
        raise VitkitError("there is no image to embed: pass some images")
    with exclusive_out(out, force=force):
        classifier = open_model(model, notes, device, preprocess)
        classifier.preprocess.check_known()
        collected = _embed(classifier, held or paths, what, batch_size)
        known_labels = None if label_of is None else tuple(label_of[path] for path in collected.paths)
        if out is not None:
            _write(out, collected, what, known_labels)
    return Embeddings(
        paths=tuple(collected.paths),
        features=collected.features,
        what=what,
        errors=dict(collected.errors),
        nearest=() if near is None else _nearest(_query(classifier, near, what), collected, top),
        out=out,
        notes=tuple(notes.lines),
        labels=known_labels,
    )


class _FeatureCollector:
    """Collect the features of images in one array, which is allocated when the first image's features are added.

    Attributes:
        paths: the images that could be read.
        errors: path and reason of each image that could not be read.
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
        """The features of `paths`, (n, ...)."""
        assert self._array is not None
        return self._array[: len(self.paths)]


def _check(out: Path | None, near: Path | None, what: str, sources: list[str]) -> None:
    if near is not None and what == "patches":
        raise VitkitError("--near compares one vector per image: use --what head, class or mean, not patches")
    if near is not None and not near.is_file():
        raise VitkitError(f"--near {near}: no such file")
    if out is not None:
        check_out(out, (".npz",), source_folders(sources))


def _embed(classifier: Classifier, images: Sequence[Source], what: Features, batch_size: int) -> _FeatureCollector:
    collected = _FeatureCollector(len(images))
    for done, (path, outcome) in enumerate(classifier.embed(images, what, batch_size), start=1):
        collected.add(path, outcome)
        progress("embedding", done, len(images))
    if not collected.paths:
        raise VitkitError(f"none of the {len(images)} images can be read; the first: {collected.errors[0][1]}")
    return collected


def _write(out: Path, collected: _FeatureCollector, what: str, labels: tuple[str, ...] | None) -> None:
    import numpy as np

    from vitkit.system.files import replacing

    more: dict[str, Any] = {} if labels is None else {"labels": np.array(labels, dtype=str)}
    with replacing(out) as temporary, temporary.open("wb") as file:
        np.savez(
            file,
            paths=np.array(collected.paths),
            features=collected.features,
            what=np.array(what),
            unreadable=np.array([path for path, _ in collected.errors], dtype=str),
            errors=np.array([reason for _, reason in collected.errors], dtype=str),
            **more,
        )


def _query(classifier: Classifier, near: Path, what: Features) -> npt.NDArray[Any]:
    ((_, query),) = classifier.embed([near], what)
    if isinstance(query, str):
        raise VitkitError(f"--near {near}: {query}")
    return query


def _nearest(query: npt.NDArray[Any], collected: _FeatureCollector, top: int) -> tuple[tuple[str, float], ...]:
    """Return the images with the highest cosine similarity, the highest first."""
    import numpy as np

    vectors = collected.features
    similarity = vectors @ query / (np.linalg.norm(vectors, axis=1) * np.linalg.norm(query))
    return tuple((collected.paths[i], float(similarity[i])) for i in np.argsort(-similarity, kind="stable")[:top])
