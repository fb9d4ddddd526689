"""What an export in INT8 takes from the photographs of a run: calibration, the judgement, and what is fitted again."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch

from vitkit.classifier import Classifier
from vitkit.data.layout import LayoutName
from vitkit.data.seen import PictureRecord
from vitkit.data.sources import read_source
from vitkit.data.split_file import groups_from_file, images_of_run, read_contents
from vitkit.data.table import ImageTable
from vitkit.errors import VitkitError
from vitkit.evaluation import evaluate
from vitkit.evaluation.figures import find_seen
from vitkit.exporting import Exported, Int8, Pictures
from vitkit.exporting.pictures import pictures_of
from vitkit.exporting.quantization import IMAGES
from vitkit.exporting.writing import read_pictures
from vitkit.inference.unknown import Unknown
from vitkit.system.progress import progress
from vitkit.system.run_files import GROUPS, SPLIT
from vitkit.training.finalize import ValidationFacts, calibrate_on
from vitkit.training.unknown import fit_to_images

_JUDGED = 1000  # the most validation images that judge INT8, and the most test images


def prepare_int8(
    classifier: Classifier,
    model: Path | None,
    data: str | None,
    layout: LayoutName,
    root: Path | None,
    max_drop: float,
) -> tuple[Pictures, Int8]:
    """Return the validation images that judge INT8, and what `exporting.export` requires for it.

    Args:
        classifier: the classifier to export.
        model: its run folder; None if it is in memory.
        data: a source with training and validation images, in place of those of the run.
        layout: how to interpret the folders of `data`.
        root: the folder that now contains the run's images.
        max_drop: the largest accepted loss of accuracy, from 0 to 1.

    Raises:
        VitkitError: there are no training or no validation images, or none of the training images can be read.
    """
    table, contents = _labelled_images(model, data, layout, root)
    calibration = pictures_of(table, "train", contents, IMAGES)
    pixels, _ = read_pictures(classifier, calibration)
    tests = pictures_of(table, "test", contents, _JUDGED) if "test" in table.splits else None
    refit = partial(_refit, classifier, model, table)
    return pictures_of(table, "val", contents, _JUDGED), Int8(torch.stack(pixels).numpy(), refit, tests, max_drop)


def _labelled_images(
    model: Path | None, data: str | None, layout: LayoutName, root: Path | None
) -> tuple[ImageTable, dict[str, str]]:
    """Return the images with which INT8 is calibrated and judged, and the recorded digests of their contents.

    Raises:
        VitkitError: there are none, or they lack training or validation images.
    """
    if data is not None:
        table, contents = read_source(data, layout), dict[str, str]()
    elif model is not None and (model / SPLIT).is_file():
        table, contents = images_of_run(model / SPLIT, root), {} if root else read_contents(model / SPLIT)
    else:
        raise VitkitError(
            "INT8 needs the photographs of a run: name a run folder, or a folder with train/ and val/ as --data"
        )
    for split, use in (("train", "calibrate"), ("val", "judge")):
        if split not in table.splits:
            raise VitkitError(
                f"INT8 needs {split} images to {use} it, and {table.name} has none: use another precision"
            )
    return table, contents


def _refit(classifier: Classifier, model: Path | None, table: ImageTable, exported: Exported) -> None:
    """Fit the temperature, the thresholds and the record of held-out predictions to a quantised model."""
    before, seen = classifier.held_out, None
    if classifier.pictures is not None:
        record = PictureRecord.from_bytes(classifier.pictures, str(model))
        seen, _ = find_seen(record, table, "val", is_of_run=model is not None)
    groups = {} if model is None else groups_from_file(model / GROUPS)
    facts = ValidationFacts(() if before is None else before.held_out.chosen, groups, seen or {})
    fit = partial(_fit_unknown, table) if classifier.unknown is not None else None
    calibrate_on(exported, partial(evaluate, exported, table, "val", partial(progress, "calibrating")), facts, fit)
    if before is None:  # the model promises nothing, and neither does the file
        exported.trust = None


def _fit_unknown(table: ImageTable, exported: Classifier, held_out: Sequence[str]) -> Unknown | None:
    place = {path: i for i, path in enumerate(table.paths)}
    train, known = np.flatnonzero(np.array(table.splits) == "train"), np.array([place[path] for path in held_out])
    return fit_to_images(exported, table, train, known, None, seed=0, progress=partial(progress, "unknown images"))
