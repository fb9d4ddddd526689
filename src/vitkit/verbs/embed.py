"""`vitkit.embed`: compute feature vectors of images, and find the images most similar to one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from vitkit.errors import VitkitError
from vitkit.model.config import Features
from vitkit.system.files import empty_array, replacing
from vitkit.system.progress import Progress, receiver, silent
from vitkit.text.arguments import Between, Only, check_arguments
from vitkit.text.cells import harmless, plural, record
from vitkit.verbs.inputs import (
    PREPROCESS,
    check_conflicts,
    check_out,
    exclusive_out,
    find_pictures,
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
        images: the number of images.
        unreadable: the number of images that could not be read.
        what: the kind of features: `head`, `class`, `mean` or `patches`.
        computed: the backend, the precision and the shape of the features.
        paths: the images that could be read.
        features: the features of the images in `paths`: (n, D), or (n, h * w, D) for `patches`.
        errors: the reason why an image could not be read, by path.
        out: the file with the features; None if none was written.
        nearest: the images most similar to `near` or `text` and their cosine similarities, the most similar first;
            empty without both.
        notes: assumptions about the model, and folders that were left out.
    """

    images: int
    unreadable: int
    what: Features
    computed: str
    paths: tuple[str, ...]
    features: npt.NDArray[Any]
    errors: dict[str, str]
    out: Path | None
    nearest: tuple[tuple[str, float], ...]
    notes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.paths)

    def to_dict(self) -> dict[str, Any]:
        """Return everything in plain JSON types; the features become lists."""
        return {
            "paths": list(self.paths),
            "features": self.features.tolist(),
            "what": self.what,
            "errors": self.errors,
            "nearest": [{"path": path, "similarity": similarity} for path, similarity in self.nearest],
            "notes": list(self.notes),
        }

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


_BATCH = 32  # images


@check_arguments
def embed(
    model: str | Path | Classifier,
    sources: str | Sources,
    *,
    out: Path | str | None = None,
    what: Features = "head",
    near: Path | str | None = None,
    text: str | None = None,
    top: Annotated[int, Between(1)] = 5,
    preprocess: Annotated[str | PreprocessLike | None, PREPROCESS] = None,
    compute: Annotated[Compute, Only(("batch_size", "device"))] = Compute(),
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
        out: write the features to this .npz file. Its arrays are paths, features, what, unreadable and errors.
        what: the kind of features: `head` is the input of the head, `class` the class token, `mean` the mean of the
            patch tokens, and `patches` all patch tokens.
        near: find the images most similar to this one.
        text: find the images that match this text best, with CLIP or SigLIP. The text is used unchanged, without a
            template.
        top: with `near` or `text`, the number of images to list.
        preprocess: the preprocessing of images, in a form that `vitkit.load` accepts; by default that of the model, or
            an assumed one if the model states none.
        compute: where the model computes, by default 32 images in a batch.
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
    # A search compares one vector of each image, and requires all of them.
    check_conflicts({"--text": text}, {"--near": near, "--what": what != "head", "--shard": shard})
    check_conflicts({"--near": near}, {"--what patches": what == "patches", "--shard": shard})
    check_conflicts({"pictures in memory": in_memory}, {"--shard": shard})
    if text is not None and not text.strip():
        raise VitkitError("verbs.text-empty", "the text to search for is empty")
    if near is not None and not near.is_file():
        raise VitkitError("verbs.file-missing", f"--near {near}: no such file")
    if out is not None:
        check_out(out, (".npz",), source_folders(names))
    notes = Notes()
    if in_memory:
        paths = [picture.name for picture in in_memory]
    else:
        paths, _ = find_pictures(names, notes)
        if not paths:
            raise VitkitError("verbs.images-missing", "there is no image to embed: pass some images")
        paths = list(select_shard(paths, shard))
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
        read_paths = list[str]()
        errors = list[tuple[str, str]]()  # an image may be named twice
        array: npt.NDArray[Any] | None = None
        images: Sequence[Source] = in_memory or paths
        for done, (path, outcome) in enumerate(classifier.embed(images, what, compute.batch_size or _BATCH), start=1):
            if isinstance(outcome, str):
                errors.append((path, outcome))
            else:
                if array is None:
                    array = empty_array((len(images), *outcome.shape))
                array[len(read_paths)] = outcome
                read_paths.append(path)
            receiver()("embedding", done, len(images))
        if array is None:
            raise VitkitError(
                "verbs.images-unreadable", f"none of the {len(images)} images can be read; the first: {errors[0][1]}"
            )
        features = array[: len(read_paths)]
        if out is not None:
            with replacing(out) as temporary, temporary.open("wb") as file:
                np.savez(
                    file,
                    paths=np.array(read_paths),
                    features=features,
                    what=np.array(what),
                    unreadable=np.array([path for path, _ in errors], dtype=str),
                    errors=np.array([reason for _, reason in errors], dtype=str),
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
    return Embeddings(
        images=len(images),
        unreadable=len(errors),
        what=what,
        computed=f"eager, float32: {'x'.join(map(str, features.shape))} features",
        paths=tuple(read_paths),
        features=features,
        errors=dict(errors),
        out=out,
        nearest=nearest,
        notes=tuple(notes.lines),
    )
