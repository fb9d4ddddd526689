"""The input of a measurement, a model with split images (`Subject`), and its output, a table (`Measured`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vitkit.classifier import Classifier
from vitkit.data.doctor.examine import examine
from vitkit.data.sources import read_source
from vitkit.data.splits import check_trainable, held_out_split
from vitkit.data.table import ImageTable
from vitkit.errors import VitkitError
from vitkit.evaluation.intervals import Units
from vitkit.experiments.judging import JudgingImages, before_training
from vitkit.system.files import without_place
from vitkit.system.progress import progress
from vitkit.training.lineage import RunImages, ancestry_findings, ancestry_of, divide
from vitkit.training.recipe import Recipe
from vitkit.weights import load


@dataclass(frozen=True)
class Subject:
    """A model, and the images on which something is measured.

    Attributes:
        classifier: the model.
        table: the readable images, with splits. Held-out images that the weights had seen are left out, unless the
            weights had seen all held-out images.
        judging: the test images.
        units: the independent units of the test images.
        seeds: the seeds for random draws.
        findings: notes about the model and the images.
    """

    classifier: Classifier
    table: ImageTable
    judging: JudgingImages
    units: Units
    seeds: Sequence[int]
    findings: Sequence[str]

    @property
    def held_out(self) -> str:
        """The name of the held-out split: test, or val if there is none."""
        return held_out_split(self.table)

    def features(self, images: ImageTable, what: str) -> npt.NDArray[np.float64]:
        """Return the input of the head for each image, (n, D).

        Args:
            images: the images.
            what: a description of the images, for the progress bar.

        Raises:
            VitkitError: an image can no longer be read.
        """
        parts = []
        paths = images.files()
        for path, outcome in self.classifier.embed(paths, "head"):
            if isinstance(outcome, str):
                raise VitkitError(f"{path}: {outcome}")
            parts.append(outcome)
            progress(f"features of {what}", len(parts), len(paths))
        return np.stack(parts).astype(np.float64)

    def pictures(self, most: int) -> tuple[Tensor, list[str]]:
        """Read at most `most` held-out images, evenly spread over the split.

        Returns:
            The preprocessed images, (B, C, height, width), and lines that describe them.

        Raises:
            VitkitError: no images are held out.
        """
        images = self.table.of_split(self.held_out)
        if not len(images):
            raise VitkitError(f"no images are held out of {len(self.table)}: hold out some, or add images")
        count = min(len(images), most)
        chosen = [images.file(i * len(images) // count) for i in range(count)]
        read = [self.classifier.read(file) for file in chosen]
        return torch.stack(read), [f"{count} of {len(images)} {self.held_out} images, evenly spread"]


@dataclass(frozen=True)
class Measured:
    """The result of a measurement.

    Attributes:
        headings, rows: the headings and the rows of the table.
        numbers: entries of lab.json.
        lines: remarks, one line each.
        arrays: arrays for the pictures, by name.
    """

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: Mapping[str, Any]
    lines: Sequence[str]
    arrays: Mapping[str, npt.NDArray[np.floating]] = field(default_factory=dict)


def subject_of(model: str, data: str, seeds: int, seed: int) -> Subject:
    """Load a model, and split images so that the model's weights have not seen the test images.

    Raises:
        VitkitError: the model or the data cannot be read, or images have several classes.
    """
    table = read_source(data)
    check_trainable(table)
    table.task.require_single(f"{data}: few-shot accuracy requires exactly one class per image")
    classifier = load(model, use="training")
    recipe = Recipe(data=data, weights=model, method="probe", seed=seed)
    diagnosis = examine(table, classifier.preprocess)
    split_images = divide(RunImages.of(diagnosis), recipe, ancestry_of(recipe, classifier.pictures, None))
    judging = before_training([(without_place(model), split_images)])
    left_out = judging.left_out if judging.left else ()
    images = split_images.images.take(
        [i for i, path in enumerate(split_images.images.table.paths) if path not in left_out]
    )
    held_out = held_out_split(images.table)
    judged = [i for i, name in enumerate(images.table.splits) if name == held_out]
    units = Units.of(len(judged), np.array(images.groups)[judged])
    spoiling = [finding for finding in diagnosis.findings if finding.severity == "problem"]
    findings = [
        *judging.findings(),
        *map(str, [*ancestry_findings(split_images, recipe), *split_images.findings, *spoiling]),
    ]
    findings += [] if classifier.report is None else classifier.report.caveats(has_new_head=True)
    return Subject(classifier, images.table, judging, units, range(seed, seed + seeds), findings)
