"""`vitkit.embed`: compute feature vectors of images, and find the images most similar to one."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from vitkit.errors import VitkitError
from vitkit.inference.prediction import ENCODING
from vitkit.model.config import Features
from vitkit.system.environment import DeviceName
from vitkit.system.files import empty_array, to_json
from vitkit.system.progress import Progress, Say, ignore, progress, silent
from vitkit.text.arguments import Between, check_arguments
from vitkit.text.cells import harmless, record
from vitkit.verbs.cluster import ClusterName, check_cluster, check_model, parts_of_cluster
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
from vitkit.verbs.parts import DividedJob, Part, Parts, Value, from_array, model_digest, shards_of, to_array, write_part
from vitkit.verbs.result import Notes, Result

if TYPE_CHECKING:
    import numpy.typing as npt

    from vitkit.classifier import Classifier, Sources
    from vitkit.data.in_memory import Source
    from vitkit.weights.preprocessing import PreprocessLike


@dataclass(frozen=True, repr=False, eq=False)
class Embeddings(Result):
    """The feature vectors of images.

        import vitkit

        embeddings = vitkit.embed("runs/digits-1", "photos")
        print(embeddings.features.shape, embeddings.errors)  # (n, D)

    Attributes:
        paths: the images that could be read, in order.
        features: the features of the images in `paths`: (n, D), or (n, h * w, D) for `patches`.
        what: the kind of features: `head`, `class`, `mean` or `patches`.
        errors: the reason why an image could not be read, by path.
        nearest: the images most similar to `near` and their cosine similarities, the most similar first; empty without
            `near`.
        out: the file with the features; None if none was written.
        notes: assumptions about the model, and folders that were left out.
        labels: the label of each image in `paths`, empty if the label file has no row for it; None without a label
            file.
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
        from vitkit.text.pages import table

        rows = [[escape(path), f"{similarity:.6f}"] for path, similarity in self.nearest]
        return f"<p>{escape(self._described())}</p>" + (table(rows, ("path", "similarity")) if rows else "")


@check_arguments
def embed(
    model: str | Path | Classifier,
    sources: str | Sources,
    *,
    follow_links: bool = False,
    out: Path | str | None = None,
    what: Features = "head",
    near: Path | str | None = None,
    labels: Path | str | None = None,
    top: Annotated[int, Between(1)] = 5,
    preprocess: Annotated[str | PreprocessLike | None, PREPROCESS] = None,
    batch_size: Annotated[int, Between(1)] = 32,
    device: DeviceName = "auto",
    force: bool = False,
    shard: str | None = None,
    cluster: ClusterName | None = None,
    workers: Annotated[int | None, Between(1)] = None,
    parts: Annotated[int | None, Between(1)] = None,
    note: Say = ignore,
    progress: Progress = silent,
) -> Embeddings:
    """Compute the features of images, to save them in an .npz file or to find the images most similar to a given one.

    Images are decoded and preprocessed as for predictions.

        import vitkit

        embeddings = vitkit.embed("runs/digits-1", "docs/pictures", near="docs/pictures/nine.png")
        print(embeddings.features.shape, embeddings.nearest)

    On the command line: `vitkit embed runs/digits-1 photos -o features.npz`.

    Args:
        model: a run or model folder, a checkpoint of any published layout, or a published name. A classifier in memory
            is accepted, too.
        sources: images, folders (including their sub-folders), or glob patterns. One or several pictures in memory are
            accepted, too, as for `vitkit.predict`.
        follow_links: also search what links lead to outside of a folder.
        out: write the features to this .npz file. Its arrays are paths, features, what, unreadable and errors. With
            `labels`, it also contains the array labels.
        what: the kind of features: `head` is the input of the head, `class` the class token, `mean` the mean of the
            patch tokens, and `patches` all patch tokens.
        near: find the images most similar to this one.
        labels: a label file (CSV: path, label). Images that the file excludes are left out, and the labels of the
            others are part of the result.
        top: with `near`, the number of images to list.
        preprocess: the preprocessing of images, as settings such as
            `resize=256,crop=224,interpolation=bilinear,mean=0.5,std=0.5`, as the name of a publisher whose
            preprocessing is used, such as `deit` or `google`, or as a JSON file. By default, it is that of the model,
            or an assumed one if the model states none. See `vitkit.load`.
        batch_size: the number of images in a batch.
        device: the device to compute on: `cpu`, `cuda`, `mps`, or `auto` for a CUDA GPU if there is one, else the CPU.
        force: overwrite `out`.
        shard: compute only one part of the images, such as 2/8 (the second of eight), and write its features into the
            folder `out`.parts; `vitkit gather` joins the parts. In a folder of shards, each part consists of whole
            shards.
        cluster: divide the images among several processes: `local` on this machine, `ray` on a Ray cluster. An
            interrupted command continues when it is repeated.
        workers: with `cluster`, the number of processes; by default one for each GPU, or one in total if there are no
            GPUs. With Ray and without GPUs, the default is one for each machine.
        parts: with `cluster`, the number of parts; by default one for every 5,000 images, but at least four for each
            process.
        note: called with each note of the result as soon as it is added.
        progress: called with the current task, the number of finished items and the total number of items.

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
    request = _EmbedRequest(
        model, tuple(names), follow_links, what, None if labels is None else str(labels), preprocess, batch_size, device
    )
    if check_cluster(shard=shard, cluster=cluster, workers=workers, parts=parts, out=out):
        assert out is not None
        if held or near is not None:
            raise VitkitError(
                "--shard and --cluster require files, and --near needs all features: pass files, and leave out --near"
            )
        if cluster is None:
            assert shard is not None
            file = write_part(request.job(notes), Part.of(shard), out, force=force)
            values, count = (value for _, value in file.values()), file.counts()[0]
            return _embeddings(*_collect(values, count), what, file.path, notes)
        check_model(model, "--cluster")
        images = len(request.images(notes)[0])
        counts = {"workers": workers, "parts": parts}
        with (
            exclusive_out(out, force=force),
            parts_of_cluster(request, images, out, cluster=cluster, force=force, **counts) as every,
        ):
            return join_parts(every, out, notes)
    paths, label_of = ([picture.name for picture in held], None) if held else request.images(notes)
    with exclusive_out(out, force=force):
        classifier = open_model(model, notes, device, preprocess)
        classifier.preprocess.check_known()
        collected = _embed(classifier, held or paths, what, batch_size)
        known_labels = None if label_of is None else tuple(label_of[path] for path in collected.paths)
        if out is not None:
            _write(out, collected, what, known_labels)
    nearest = () if near is None else _nearest(_query(classifier, near, what), collected, top)
    return _embeddings(collected, known_labels, what, out, notes, nearest)


def _embeddings(
    collected: _FeatureCollector,
    labels: tuple[str, ...] | None,
    what: Features,
    out: Path | None,
    notes: Notes,
    nearest: tuple[tuple[str, float], ...] = (),
) -> Embeddings:
    return Embeddings(
        paths=tuple(collected.paths),
        features=collected.features,
        what=what,
        errors=dict(collected.errors),
        nearest=nearest,
        out=out,
        notes=tuple(notes.lines),
        labels=labels,
    )


@dataclass(frozen=True)
class _EmbedRequest:
    """The arguments of `embed` that affect the features. They can be sent to other processes."""

    model: str | Path | Classifier
    names: tuple[str, ...]
    follow_links: bool
    what: Features
    labels: str | None
    preprocess: str | PreprocessLike | None
    batch_size: int
    device: DeviceName

    def images(self, note: Say) -> tuple[list[str], dict[str, str] | None]:
        """Return the paths of the images, and a dict from path to label.

        Without a label file, None is returned instead of the dict.
        """
        paths = find_pictures(self.names, note, follow_links=self.follow_links)[0]
        label_of = None if self.labels is None else labels_by_path(paths, self.labels, source_folders(self.names), note)
        paths = paths if label_of is None else list(label_of)
        if not paths:
            raise VitkitError("there is no image to embed: pass some images")
        return paths, label_of

    def job(self, note: Say = ignore) -> DividedJob:
        """Open the model, find the images, and return a job that can be divided into parts."""
        paths, label_of = self.images(ignore)
        classifier = open_model(self.model, note, self.device, self.preprocess)
        classifier.preprocess.check_known()
        labels = None if label_of is None else hashlib.sha256(to_json(label_of).encode(*ENCODING)).hexdigest()[:12]
        flags = {"what": self.what, "labels": labels, "batch_size": self.batch_size}
        about = {"model": model_digest(classifier), "flags": flags}
        compute, folders = partial(self._values, classifier, paths, label_of or {}), source_folders(self.names)
        return DividedJob("embed", paths, about, lambda: (classifier.computation, compute), shards_of(paths), folders)

    def _values(
        self, classifier: Classifier, paths: Sequence[str], label_of: Mapping[str, str], positions: Sequence[int]
    ) -> Iterator[Value]:
        """Yield the path, the label and the features of the images at these positions, in JSON types."""
        part = classifier.as_part(positions, len(paths))
        for path, outcome in part.embed([paths[i] for i in positions], self.what, self.batch_size):
            about = {"path": path, "label": label_of.get(path)}
            yield (about, outcome) if isinstance(outcome, str) else ({**about, **from_array(outcome)}, None)


def join_parts(parts: Parts, out: Path, notes: Notes) -> Embeddings:
    """Write the features of all parts to a file, and return them.

    Raises:
        VitkitError: a part is damaged, or no image can be read.
        OSError: the file cannot be written.
    """
    collected, labels = _collect(parts.values(), parts.images)
    _check_readable(collected, parts.images)
    what = parts.flags["what"]
    _write(out, collected, what, labels)
    return _embeddings(collected, labels, what, out, notes)


def _collect(values: Iterable[Value], images: int) -> tuple[_FeatureCollector, tuple[str, ...] | None]:
    collected, labels = _FeatureCollector(images), list[str]()
    for value, error in values:
        collected.add(value["path"], error or to_array(value))
        if error is None:
            labels.append(value["label"])
    return collected, None if None in labels else tuple(labels)


class _FeatureCollector:
    """A collector of features in one array, which is allocated when the first features are added.

    Attributes:
        paths: the images that could be read.
        errors: the path of each image that could not be read, with the reason.
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
            self._array = empty_array((self._images, *outcome.shape))
        self._array[len(self.paths)] = outcome
        self.paths.append(path)

    @property
    def features(self) -> npt.NDArray[Any]:
        """The features of `paths`, (n, ...)."""
        import numpy as np

        return np.empty((0, 0), np.float32) if self._array is None else self._array[: len(self.paths)]


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
    _check_readable(collected, len(images))
    return collected


def _check_readable(collected: _FeatureCollector, images: int) -> None:
    if not collected.paths:
        raise VitkitError(f"none of the {images} images can be read; the first: {collected.errors[0][1]}")


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
    """Return the `top` images most similar to `query`, with their cosine similarities, the most similar first."""
    import numpy as np

    vectors = collected.features
    similarity = vectors @ query / (np.linalg.norm(vectors, axis=1) * np.linalg.norm(query))
    return tuple((collected.paths[i], float(similarity[i])) for i in np.argsort(-similarity, kind="stable")[:top])
