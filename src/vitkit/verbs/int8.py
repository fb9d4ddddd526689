"""Prepare an export in INT8: choose the images that calibrate and test it, and calibrate the quantised model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from vitkit.classifier import Classifier
from vitkit.data.sources import read_source
from vitkit.data.split_file import groups_from_file, images_of_run, read_contents
from vitkit.data.table import ImageTable
from vitkit.errors import VitkitError
from vitkit.evaluation import evaluate
from vitkit.exporting import Exported, Int8, Pictures
from vitkit.exporting.pictures import pictures_of
from vitkit.exporting.quantization import IMAGES
from vitkit.exporting.writing import read_pictures
from vitkit.inference.unknown import Unknown
from vitkit.system.progress import progress
from vitkit.system.run_files import GROUPS, SPLIT
from vitkit.training.finalize import ValidationFacts, calibrate_on
from vitkit.training.unknown import fit_to_images
from vitkit.verbs.evaluate import seen_images

_MAX_IMAGES = 1000  # the largest number of validation images that INT8 is compared on, and of test images


@dataclass(frozen=True)
class Photographs:
    """Labelled photographs for INT8, with training and validation images.

    Attributes:
        table: the photographs.
        contents: the recorded digests of their contents, by path; empty if none are recorded.
        run: the folder of the run whose photographs they are; None for those of another source.
    """

    table: ImageTable
    contents: dict[str, str]
    run: Path | None

    def choose(self, split: str, max_images: int = _MAX_IMAGES) -> Pictures:
        """Choose up to `max_images` images of a split."""
        return pictures_of(self.table, split, self.contents, max_images)


def find_photographs(model: Path | None, data: str | None, root: Path | None) -> Photographs:
    """Find the photographs that INT8 requires: those in `data`, or by default those of the run in the folder `model`.

    `root` is the folder that now contains the run's images, if they have been moved.
    """
    if data is not None:
        photographs = Photographs(read_source(data), {}, None)
    elif model is not None and (model / SPLIT).is_file():
        contents = {} if root else read_contents(model / SPLIT)
        photographs = Photographs(images_of_run(model / SPLIT, root), contents, model)
    else:
        raise VitkitError(
            "verbs.images-missing",
            "INT8 needs the photographs of a run: name a run folder, or a folder with train/ and val/ as --data",
        )
    for split, use in (("train", "calibrate"), ("val", "judge")):
        if split not in photographs.table.splits:
            raise VitkitError(
                "verbs.images-missing",
                f"INT8 needs {split} images to {use} it, and {photographs.table.name} has none: use another precision",
            )
    return photographs


def prepare_int8(classifier: Classifier, photographs: Photographs, max_drop: float) -> Int8:
    """Return what `exporting.export` requires for INT8; `max_drop` is the largest accepted loss of accuracy, 0 to 1."""
    pixels, _ = read_pictures(classifier, photographs.choose("train", IMAGES))
    tests = photographs.choose("test") if "test" in photographs.table.splits else None
    return Int8(torch.stack(pixels).numpy(), partial(_refit, classifier, photographs), tests, max_drop)


def _refit(classifier: Classifier, photographs: Photographs, exported: Exported) -> None:
    """Fit the temperature, the thresholds and the record of held-out predictions to a quantised model."""
    table, run = photographs.table, photographs.run
    before = classifier.held_out
    chosen = () if before is None else before.held_out.chosen
    groups = {} if run is None else groups_from_file(run / GROUPS)
    seen, _ = seen_images(classifier, run or "the model", table, "val", is_of_run=run is not None)
    evaluate_exported = partial(evaluate, exported, table, "val", partial(progress, "calibrating"))

    def fit_unknown(exported: Classifier, held_out: Sequence[str]) -> Unknown | None:
        return fit_to_images(exported, table, held_out, None, seed=0, progress=partial(progress, "unknown images"))

    fit = None if classifier.unknown is None else fit_unknown
    calibrate_on(exported, evaluate_exported, ValidationFacts(chosen, groups, seen or {}), fit)
    if before is None:  # the model promises nothing, and neither does the file
        exported.trust = None
