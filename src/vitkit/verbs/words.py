"""What verbs do with words: classes by name, in the place of a model that was trained on them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vitkit.errors import VitkitError
from vitkit.system.progress import Progress, Say
from vitkit.verbs.inputs import open_model

if TYPE_CHECKING:
    from vitkit.classifier import Classifier
    from vitkit.language.zero_shot import ImagesAndWords


def open_named(
    model: str | Path | Classifier,
    classes: str | Sequence[str] | None,
    templates: Sequence[str],
    note: Say,
    progress: Progress,
    *,
    one: bool | None,
) -> Classifier:
    """The classifier that is meant; of classes by name, where some are named.

    Args:
        model: as of `open_model`; with `classes`, what holds a text encoder.
        classes: names, or text with commas between them, or a .txt file; None: those of the model.
        templates: sentences with {} where the name goes; none: as published.
        note: told what was assumed, a line each, and how probabilities are made.
        progress: of loading.
        one: as of `ImagesAndWords.classifier`.

    Raises:
        VitkitError: the model cannot be loaded, or has no words.
    """
    if classes is None:
        if templates or one is not None:
            raise VitkitError(f"{'--template' if templates else '--one'} is for classes by name: give --classes too")
        return open_model(model, note, progress)
    classifier = open_words(model, note, progress).classifier(named_classes(classes), templates, one=one)
    used = ", ".join(repr(template) for template in classifier.provenance["templates"])
    how = "softmax: exactly one of the classes" if classifier.task == "single" else "sigmoid: each class by itself"
    note(f"{len(classifier.classes)} classes by name, as {used}; {how}")
    return classifier


def open_words(model: str | Path | Classifier, note: Say, progress: Progress) -> ImagesAndWords:
    """A model of images and words.

    Raises:
        VitkitError: it cannot be loaded, or has no words.
    """
    from vitkit.language.zero_shot import read_images_and_words

    if not isinstance(model, (str, Path)):
        raise VitkitError("words need the files of CLIP or SigLIP, not a classifier in memory: give their folder")
    found = read_images_and_words(model, progress)
    assert found.images.report is not None
    for name, taken in found.images.report.assumed.items():
        note(f"{name} assumed: {taken}")
    return found


def named_classes(classes: str | Sequence[str]) -> list[str]:
    """Names, out of a text with commas between them, or of a .txt file with one in a line.

    Raises:
        VitkitError: the file is not there, or is no text.
    """
    if not isinstance(classes, str):
        return list(classes)
    if not classes.endswith(".txt"):
        return classes.split(",")
    try:
        return Path(classes).read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise VitkitError(f"--classes {classes}: cannot be read: {error}") from error
