"""Writing a classifier in the layouts of others, so that they load what was trained here."""

from __future__ import annotations

from pathlib import Path

from vitkit.classifier import Classifier
from vitkit.errors import VitkitError
from vitkit.weights.formats.registry import CHECKPOINT_FORMATS, OWN


def write(classifier: Classifier, destination: Path, to: str) -> None:
    """Write a classifier: `folder` is vitkit's own, every other a row of `CHECKPOINT_FORMATS`.

    All of them take the record of what the weights were trained on. Others than vitkit's own know no temperature, so
    the heads are divided by it (`foreign.settled`).

    Raises:
        VitkitError: the layout cannot express the model; the message names the field.
        OSError: the disk is full or not writable; nothing is left behind.
    """
    if to == OWN:
        classifier.save(destination)
        return
    if classifier.thresholds is not None:
        raise VitkitError(
            f"the {to} layout has no place for thresholds, and this model may name several classes of an image;\n"
            "give --to folder, take `vitkit export`, or leave the head out: --num-classes 0"
        )
    CHECKPOINT_FORMATS[to].write(classifier, destination)
