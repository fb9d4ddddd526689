"""`vitkit.embed`: compute feature vectors of images, and find the images most similar to one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from vitkit.errors import VitkitError
from vitkit.inference.prediction import parquet_files, tally_parquet
from vitkit.model.config import Features
from vitkit.system.files import empty_array, replacing
from vitkit.system.progress import Progress, ignore, progress, silent
from vitkit.text.arguments import Between, Only, check_arguments
from vitkit.text.cells import harmless, plural, record
from vitkit.verbs.cluster import Cells, OpenedModel, check_cluster, computed_on_cluster, parquet_folder, write_by_ray
from vitkit.verbs.inputs import (
    PREPROCESS,
    check_conflicts,
    check_out,
    exclusive_out,
    find_pictures,
    labels_by_path,
    open_images_and_words,
    open_model,
    path_of,
    select_shard,
    source_folders,
    split_sources,
)
from vitkit.verbs.options import Compute
from vitkit.verbs.result import Notes, Result

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow

    from vitkit.classifier import Classifier, Sources
    from vitkit.data.in_memory import Source
    from vitkit.weights.preprocessing import PreprocessLike


@dataclass(frozen=True)
class Vectors:
    """Feature vectors of images, and the images that could not be read, see `Embeddings`."""

    paths: tuple[str, ...]
    features: npt.NDArray[Any]
    errors: dict[str, str]
    labels: tuple[str, ...] | None


@dataclass(frozen=True, repr=False, eq=False)
class Embeddings(Result):
    """The feature vectors of images. If a cluster has written them to files, they are read when they are accessed.

        import vitkit

        embeddings = vitkit.embed("runs/digits-1", "photos")
        print(embeddings.features.shape, embeddings.errors)  # (n, D)

    Attributes:
        images: the number of images.
        unreadable: the number of images that could not be read.
        what: the kind of features: `head`, `class`, `mean` or `patches`.
        computed: a description of the backend and precision.
        read: a function that returns the features and their images.
        out: the file or folder with the features; None if none was written.
        nearest: the images most similar to `near` or `text` and their cosine similarities, the most similar first;
            empty without both.
        notes: assumptions about the model, and folders that were left out.
    """

    images: int
    unreadable: int
    what: Features
    computed: str
    read: Callable[[], Vectors]
    out: Path | None
    nearest: tuple[tuple[str, float], ...]
    notes: tuple[str, ...]

    def __len__(self) -> int:
        return self.images - self.unreadable

    @cached_property
    def _vectors(self) -> Vectors:
        return self.read()

    @property
    def paths(self) -> tuple[str, ...]:
        """The images that could be read; in any order if a cluster has computed them."""
        return self._vectors.paths

    @property
    def features(self) -> npt.NDArray[Any]:
        """The features of the images in `paths`: (n, D), or (n, h * w, D) for `patches`."""
        return self._vectors.features

    @property
    def errors(self) -> dict[str, str]:
        """The reason why an image could not be read, by path."""
        return self._vectors.errors

    @property
    def labels(self) -> tuple[str, ...] | None:
        """The label of each image in `paths`, empty if the label file has no row for it; None without a label file."""
        return self._vectors.labels

    def to_dict(self) -> dict[str, Any]:
        """Return everything in plain JSON types; the features become lists."""
        nearest = [{"path": path, "similarity": similarity} for path, similarity in self.nearest]
        values = {"paths": list(self.paths), "features": self.features.tolist(), "what": self.what}
        values |= {} if self.labels is None else {"labels": list(self.labels)}
        return {**values, "errors": self.errors, "nearest": nearest, "notes": list(self.notes)}

    def lines(self) -> list[str]:
        """Return a line about the file, if one was written, and the most similar images as CSV."""
        written = [f"{self._described()} in {self.out}"] if self.out is not None else []
        if not self.nearest:
            return written
        rows = (record((harmless(path), f"{similarity:.6f}")) for path, similarity in self.nearest)
        return [*written, record(("path", "similarity")), *rows]

    def _described(self) -> str:
        return f"{plural(self.images, 'image', 'images')} ({self.unreadable} unreadable), {self.computed}"

    def __repr__(self) -> str:
        return f"<Embeddings: {self._described()}>"

    def _repr_html_(self) -> str:
        from vitkit.text.pages import table

        rows = [[escape(path), f"{similarity:.6f}"] for path, similarity in self.nearest]
        return f"<p>{escape(self._described())}</p>" + (table(rows, ("path", "similarity")) if rows else "")


_BATCH = 32  # images
_CONFLICTS = {  # a search compares one vector of each image, and requires all of them
    "--text": ("--near", "--what", "--shard", "--cluster"),
    "--near": ("--what patches", "--shard", "--cluster"),
    "pictures in memory": ("--labels", "--shard", "--cluster"),
}


@check_arguments
def embed(
    model: str | Path | Classifier,
    sources: str | Sources,
    *,
    out: Path | str | None = None,
    what: Features = "head",
    near: Path | str | None = None,
    text: str | None = None,
    labels: Path | str | None = None,
    top: Annotated[int, Between(1)] = 5,
    preprocess: Annotated[str | PreprocessLike | None, PREPROCESS] = None,
    compute: Annotated[Compute, Only(("batch_size", "device", "cluster"))] = Compute(),
    force: bool = False,
    shard: str | None = None,
    progress: Progress = silent,
) -> Embeddings:
    """Compute the features of images, to save them in an .npz file or to find the images most similar to a given one.

    Images are decoded and preprocessed as for predictions. With CLIP or SigLIP, images can also be found by a text.

        import vitkit

        embeddings = vitkit.embed("runs/digits-1", "docs/pictures", near="docs/pictures/nine.png")
        print(embeddings.features.shape, embeddings.nearest)

    On the command line: `vitkit embed runs/digits-1 photos -o features.npz`.

    Args:
        model: a run or model folder, a checkpoint of any published layout, or a published name. A classifier in memory
            is accepted, too.
        sources: images, folders (including their sub-folders), or glob patterns. One or several pictures in memory are
            accepted, too, as for `vitkit.predict`.
        out: write the features to this .npz file. Its arrays are paths, features, what, unreadable and errors. With
            `labels`, it also contains the array labels.
        what: the kind of features: `head` is the input of the head, `class` the class token, `mean` the mean of the
            patch tokens, and `patches` all patch tokens.
        near: find the images most similar to this one.
        text: find the images that match this text best, with CLIP or SigLIP. The text is used unchanged, without a
            template.
        labels: a label file (CSV: path, label). Images that the file excludes are left out, and the labels of the
            others are part of the result.
        top: with `near` or `text`, the number of images to list.
        preprocess: the preprocessing of images, as settings such as
            `resize=256,crop=224,interpolation=bilinear,mean=0.5,std=0.5`, or as the name of a publisher whose
            preprocessing is used, such as `deit` or `google`. By default, it is that of the model,
            or an assumed one if the model states none. See `vitkit.load`.
        compute: where the model computes, by default 32 images in a batch. With `cluster`, the features are written
            into a folder `out` of .parquet files, in any order.
        force: overwrite `out`.
        shard: embed only one part of the images, such as 2/8: the second of eight runs of consecutive images.
        progress: called with the current task, the number of finished items and the total number of items.

    Raises:
        VitkitError: a value is not allowed, the model cannot be loaded or has no such features, no image can be read,
            or `out` exists or is being written by another process.
        OSError: `out` cannot be written.
    """
    names, in_memory = split_sources(sources)
    out, near = path_of(out), path_of(near)
    check_cluster(compute, out, model)
    given = {
        "--text": text is not None,
        "--near": near,
        "--what": what != "head",
        "--what patches": what == "patches",
        "--labels": labels,
        "--shard": shard,
        "--cluster": compute.cluster,
        "pictures in memory": in_memory,
    }
    check_conflicts(given, _CONFLICTS)
    if text is not None and not text.strip():
        raise VitkitError("verbs.text-empty", "the text to search for is empty")
    if near is not None and not near.is_file():
        raise VitkitError("verbs.file-missing", f"--near {near}: no such file")
    if out is not None and compute.cluster is None:
        check_out(out, (".npz",), source_folders(names))
    notes = Notes()
    label_of: dict[str, str] | None = None
    if in_memory:
        paths = [picture.name for picture in in_memory]
    else:
        paths, _ = find_pictures(names, notes)
        if labels is not None:
            label_of = labels_by_path(paths, str(labels), source_folders(names), notes)
            paths = list(label_of)
        if not paths:
            raise VitkitError("verbs.images-missing", "there is no image to embed: pass some images")
        paths = list(select_shard(paths, shard))
    if compute.cluster is not None:
        assert out is not None and isinstance(model, (str, Path))
        job = _ClusterJob(str(model), preprocess, compute, what, label_of)
        with parquet_folder(out, source_folders(names), force=force) as folder:
            open_model(model, notes, compute.device, preprocess).preprocess.check_known()  # before Ray is started
            computation = write_by_ray(job.open_on_worker, paths, job.schema(), folder, compute)
            tally = tally_parquet(folder)
        computed, read = computed_on_cluster(computation), partial(_read_folder, out)
        return Embeddings(tally.images, tally.unreadable, what, computed, read, out, (), tuple(notes.lines))
    import numpy as np

    with exclusive_out(out, force=force):
        query = None
        if text is None:
            classifier = open_model(model, notes, compute.device, preprocess)
        else:
            words = open_images_and_words(model, notes, preprocess)
            query = words.vectors([text])[0].numpy()
            classifier = words.images.to(compute.device)
        classifier.preprocess.check_known()
        read_paths, features, errors = _embed_images(classifier, in_memory or paths, what, compute.batch_size or _BATCH)
        known_labels = None if label_of is None else tuple(label_of[path] for path in read_paths)
        if out is not None:
            label_array: dict[str, Any] = {} if known_labels is None else {"labels": np.array(known_labels, dtype=str)}
            with replacing(out) as temporary, temporary.open("wb") as file:
                np.savez(
                    file,
                    paths=np.array(read_paths),
                    features=features,
                    what=np.array(what),
                    unreadable=np.array([path for path, _ in errors], dtype=str),
                    errors=np.array([reason for _, reason in errors], dtype=str),
                    **label_array,
                )
    if near is not None:
        ((_, features_or_error),) = classifier.embed([near], what)
        if isinstance(features_or_error, str):
            raise VitkitError("verbs.images-unreadable", f"--near {near}: {features_or_error}")
        query = features_or_error
    nearest: tuple[tuple[str, float], ...] = ()
    if query is not None:
        cosine = features @ query / (np.linalg.norm(features, axis=1) * np.linalg.norm(query))
        nearest = tuple((read_paths[i], float(cosine[i])) for i in np.argsort(-cosine, kind="stable")[:top])
    vectors = Vectors(tuple(read_paths), features, dict(errors), known_labels)
    shape = "x".join(map(str, features.shape))
    computed = f"eager, float32: {shape} features"
    return Embeddings(len(paths), len(errors), what, computed, lambda: vectors, out, nearest, tuple(notes.lines))


def _read_folder(folder: Path) -> Vectors:
    """Read the .parquet files that a cluster has written, see `_ClusterJob.schema`."""
    import numpy as np
    from pyarrow.parquet import read_table

    rows = [row for file in parquet_files(folder) for row in read_table(file).to_pylist()]
    readable = [row for row in rows if row["error"] is None]
    labels = tuple(row["label"] for row in readable) if rows and "label" in rows[0] else None
    features = np.array([row["features"] for row in readable], np.float32)
    errors = {row["path"]: row["error"] for row in rows if row["error"] is not None}
    return Vectors(tuple(row["path"] for row in readable), features, errors, labels)


@dataclass(frozen=True)
class _ClusterJob:
    """The arguments of `embed` that affect the features, for the processes of a cluster."""

    model: str
    preprocess: str | PreprocessLike | None
    compute: Compute
    what: Features
    label_of: Mapping[str, str] | None

    def schema(self) -> pyarrow.Schema:
        """Return the columns of the Parquet files."""
        import pyarrow

        numbers = pyarrow.list_(pyarrow.float32())
        labels = {} if self.label_of is None else {"label": pyarrow.string()}
        features = pyarrow.list_(numbers) if self.what == "patches" else numbers
        return pyarrow.schema({"path": pyarrow.string(), **labels, "error": pyarrow.string(), "features": features})

    def open_on_worker(self, _: Mapping[str, Any] | None) -> OpenedModel:
        """Open the model in a process of a cluster, see `cluster.write_by_ray`."""
        classifier = open_model(self.model, ignore, self.compute.device, self.preprocess)

        def compute(paths: Iterable[str]) -> Iterator[Cells]:
            for path, outcome in classifier.embed(paths, self.what, self.compute.batch_size or _BATCH):
                labels = [] if self.label_of is None else [self.label_of[path]]
                error, features = (outcome, None) if isinstance(outcome, str) else (None, outcome.tolist())
                yield [path, *labels, error, features]

        return {"backend": "eager", "precision": "float32", "plan": ""}, compute


def _embed_images(
    classifier: Classifier, images: Sequence[Source], what: Features, batch_size: int
) -> tuple[list[str], npt.NDArray[Any], list[tuple[str, str]]]:
    """Return the paths of the readable images, their features (n, ...), and the paths and errors of the others."""
    paths: list[str] = []
    errors: list[tuple[str, str]] = []
    features: npt.NDArray[Any] | None = None
    for done, (path, outcome) in enumerate(classifier.embed(images, what, batch_size), start=1):
        if isinstance(outcome, str):
            errors.append((path, outcome))
        else:
            if features is None:
                features = empty_array((len(images), *outcome.shape))
            features[len(paths)] = outcome
            paths.append(path)
        progress("embedding", done, len(images))
    if features is None:
        raise VitkitError(
            "verbs.images-unreadable", f"none of the {len(images)} images can be read; the first: {errors[0][1]}"
        )
    return paths, features[: len(paths)], errors
