"""Choose the test images of a comparison or a measurement: held-out images that no model's weights have seen.

Initial weights from an earlier run may have been trained on some of the held-out images, and several splits of a data
set may contain the same picture. Such images would favour the model that has seen them, so they are left out for all
models.

A measurement of the lab takes a `Subject`, which is a model with its split images, and returns a `Measured`, which
contains a table.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from vitkit.classifier import Classifier
from vitkit.data import (
    ImageTable,
    PictureRecord,
    check_trainable,
    examine,
    held_out_split,
    read_contents,
    read_source,
    roles_after_training,
    split_from_file,
)
from vitkit.errors import VitkitError
from vitkit.evaluation import Units, chosen_on, images_in_words, seen_to_exclude
from vitkit.model_folder import RECORD, read_description, read_optional
from vitkit.system import RECIPE, SPLIT, public_path, receiver, to_json
from vitkit.text import plural
from vitkit.training import (
    Recipe,
    RunImages,
    SplitImages,
    ancestry_findings,
    ancestry_of,
    assign_splits,
    load_run_recipe,
)
from vitkit.weights import load

_MIN_IMAGES = 20  # minimum number of test images; if fewer than 40 images are held out, the minimum is half of them


@dataclass(frozen=True)
class ComparisonImages:
    """The test images of a comparison."""

    split: str  # `test` if it exists, otherwise `val`, otherwise `all` for all images
    held_out: int  # the number of images in this split
    seen: Mapping[str, frozenset[str]]  # by model, the paths of those that its weights had seen, if there are any
    chosen_on: tuple[str, ...] = ()  # what the trainings chose by means of these images, such as the best epoch

    @property
    def left_out(self) -> frozenset[str]:
        """The paths of the images that are left out because some of the weights had seen them."""
        return frozenset[str]().union(*self.seen.values())

    @property
    def remaining(self) -> int:
        """The number of held-out images that are not left out."""
        return self.held_out - len(self.left_out)

    @property
    def _seen_in_words(self) -> str:
        return ", ".join(f"{model} had seen {len(paths)}" for model, paths in self.seen.items())

    def findings(self) -> list[str]:
        """Return sentences about limitations of the results: images left out, and choices made on these images."""
        notes = []
        if self.seen:
            images = images_in_words(self.held_out, self.split)
            notes.append(f"{len(self.left_out)} of {images} are left out for all models: {self._seen_in_words}")
        if self.chosen_on:
            notes.append(
                f"the figures are of validation images, on which the trainings chose {', '.join(self.chosen_on)}, so "
                "they are too optimistic; only a test split gives figures on which nothing was chosen"
            )
        return notes

    def to_dict(self) -> dict[str, Any]:
        """Return the number of images that are left out, and how many of them each model had seen."""
        return {"images": len(self.left_out), "seen": {model: len(paths) for model, paths in self.seen.items()}}

    def check(self) -> None:
        """Refuse weights that had seen so many images that fewer than half and fewer than `_MIN_IMAGES` remain."""
        if not self.seen or self.remaining >= max(min(_MIN_IMAGES, self.held_out / 2), 1):
            return
        if self.split == "all":
            raise VitkitError(
                "experiments.test-images-few",
                f"no images are held out for the test, and {len(self.left_out)} of {self.held_out} are trained "
                "on: hold out some, or add images",
            )
        raise VitkitError(
            "experiments.test-images-few",
            f"{plural(self.remaining, 'image is', 'images are')} left for the test, which is too few: of "
            f"{images_in_words(self.held_out, self.split)} {self._seen_in_words}; use other weights, or hold out "
            "photographs that none of the models was trained on and that are not copies of training images",
        )


def before_training(entries: Iterable[tuple[str, SplitImages]]) -> ComparisonImages:
    """Choose the test images for models that are not trained yet, given the name and the images of each model.

    The images are split in the same way for all models.
    """
    seen: dict[str, frozenset[str]] = {}
    split, held_out = "all", 0
    for model, start in entries:
        table = start.images.table
        split = held_out_split(table)
        tested = _indices_of(split, table)
        held_out = len(tested)
        roles = roles_after_training(table, start.images.groups, start.overlap)
        seen_by_model = seen_to_exclude({table.paths[i]: roles[i] for i in tested}, split)
        if seen_by_model:
            seen[model] = frozenset(seen_by_model)
    return ComparisonImages(split, held_out, seen)


def after_training(runs: Iterable[tuple[str, Path]], test_hash: str) -> ComparisonImages:
    """Choose the test images for finished runs, which are pairs of model name and run folder.

    Each run has a record of the images that its weights have seen. `test_hash` is the hash of the comparison's test
    images (`hash_of_images`). A run that was tested on other images is refused, and so are weights that had seen too
    many of them.
    """
    seen: dict[str, frozenset[str]] = {}
    chosen: dict[str, None] = {}  # an ordered set
    split, held_out = "all", 0
    for model, folder in runs:
        table, contents = split_from_file(folder / SPLIT), read_contents(folder / SPLIT)
        split = held_out_split(table)
        tested = _indices_of(split, table)
        if _hash_of((table.name_of(i), contents.get(table.paths[i], "")) for i in tested) != test_hash:
            raise VitkitError(
                "experiments.test-images-differ",
                f"{folder} was tested on other images than the comparison started with: start a new one",
            )
        held_out = len(tested)
        record = read_optional(folder, RECORD, read_description(folder))
        if record is not None:
            roles = PictureRecord.from_bytes(record, folder).roles_of(contents)
            seen_by_run = seen_to_exclude({table.paths[i]: roles.get(table.paths[i]) for i in tested}, split)
            if seen_by_run:
                seen[model] = seen.get(model, frozenset()) | frozenset(seen_by_run)
        recipe = load_run_recipe(folder / RECIPE)
        chosen |= dict.fromkeys(chosen_on(split, recipe.to_dict(), table.task))
    test_images = ComparisonImages(split, held_out, seen, tuple(chosen))
    test_images.check()
    return test_images


def _indices_of(split: str, table: ImageTable) -> list[int]:
    return [i for i, name in enumerate(table.splits) if split in ("all", name)]


def hash_of_images(images: SplitImages, split: str) -> str:
    """Hash the contents and classes of a split's images, independently of their paths."""
    table, contents = images.images.table, images.images.contents
    return _hash_of((table.name_of(i), contents[table.paths[i]]) for i in _indices_of(split, table))


def _hash_of(rows: Iterable[tuple[str, str]]) -> str:
    """Hash pairs of class name and image digest, independently of their order."""
    return hashlib.sha256(to_json([list(row) for row in sorted(rows)]).encode()).hexdigest()


# --- The subject of a measurement, and its result -------------------------------------------------------------


def head_features(classifier: Classifier, files: Sequence[Any], what: str) -> npt.NDArray[np.float64]:
    """Return the features of each image, that is, the input of the classification head, (n, D).

    `what` describes the images in the progress bar. It is an error if an image cannot be read.
    """
    features: list[npt.NDArray[np.floating]] = []
    for path, outcome in classifier.embed(files, "head"):
        if isinstance(outcome, str):
            raise VitkitError("experiments.image-unreadable", f"{path}: {outcome}")
        features.append(outcome)
        receiver()(f"features of {what}", len(features), len(files))
    return np.stack(features).astype(np.float64)


@dataclass(frozen=True)
class Subject:
    """A model, and the images on which something is measured.

    The table has the readable images with their splits. Held-out images that the weights had seen are left out, unless
    the weights had seen all of them.
    """

    classifier: Classifier
    table: ImageTable
    test_images: ComparisonImages
    units: Units  # the independent units of the test images: single images, or groups of related images
    seeds: Sequence[int]  # for random draws
    findings: Sequence[str]  # about the model and the images

    @property
    def held_out(self) -> str:
        """The split to test on, as in `ComparisonImages`."""
        return held_out_split(self.table)


@dataclass(frozen=True)
class Measured:
    """The result of a measurement: a table, the entries of lab.json, remarks, and arrays for the pictures."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: Mapping[str, Any]
    lines: Sequence[str]
    arrays: Mapping[str, npt.NDArray[np.floating]] = field(default_factory=dict)


def subject_of(model: str, data: str, seeds: int, seed: int) -> Subject:
    """Load a model, and split the images so that the model's weights have not seen the test images.

    If the weights have seen all held-out images, these images are kept. `seeds` is the number of seeds for random
    draws, starting from `seed`.
    """
    table = read_source(data)
    check_trainable(table)
    table.task.require_single(f"{data}: few-shot accuracy requires exactly one class per image")
    classifier = load(model, use="training")
    recipe = Recipe(data=data, weights=model, method="probe", seed=seed)
    diagnosis = examine(table, classifier.preprocess)
    run_images = RunImages(diagnosis.table, diagnosis.facts, diagnosis.twins)
    split_images = assign_splits(run_images, recipe, ancestry_of(recipe, classifier.pictures, None))
    test_images = before_training([(public_path(model), split_images)])
    left_out = test_images.left_out if test_images.remaining else frozenset()
    table = split_images.images.table
    images = split_images.images.take([i for i, path in enumerate(table.paths) if path not in left_out])
    tested = _indices_of(held_out_split(images.table), images.table)
    units = Units.of(len(tested), np.array(images.groups)[tested])
    findings = [
        *test_images.findings(),
        *map(str, ancestry_findings(split_images, recipe)),
        *map(str, split_images.findings),
        *(str(finding) for finding in diagnosis.findings if finding.severity == "problem"),
    ]
    if classifier.report is not None:
        findings += classifier.report.caveats(has_new_head=True)
    return Subject(classifier, images.table, test_images, units, range(seed, seed + seeds), findings)
