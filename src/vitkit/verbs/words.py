"""What verbs do with words: classes by name, in the place of a model that was trained on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from vitkit.errors import VitkitError
from vitkit.system.progress import Progress, Say
from vitkit.text.words import listed
from vitkit.verbs.inputs import open_model

if TYPE_CHECKING:
    from vitkit.classifier import Classifier
    from vitkit.data.sources import ImageTable
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
    _tell_of_names(classifier, note)
    return classifier


def open_for_labels(
    model: str | Path | Classifier,
    classes: str | Sequence[str] | None,
    templates: Sequence[str],
    note: Say,
    progress: Progress,
) -> Callable[[ImageTable], Classifier]:
    """As `open_named`, for labelled images, from which the classifier is had: classes by name are theirs, each of them.

    An image with one label has exactly one of the classes; so the answers of SigLIP are a softmax then, too.

    Raises:
        VitkitError: as `open_named`; and once it is asked, a name is of no images, or a class of images is not named.
    """
    if classes is None:
        opened = open_named(model, None, templates, note, progress, one=None)
        return lambda _table: opened
    from vitkit.language.class_words import spoken

    words, names = open_words(model, note, progress), spoken([name.strip() for name in named_classes(classes)])

    def named(table: ImageTable) -> Classifier:
        found = words.classifier(names, templates, one=None if table.is_multi else True)
        present = [name for name, count in table.counts().items() if count]
        label_of = dict(zip(spoken(present), present, strict=True))
        unknown = [name for name in found.classes if name not in label_of]
        unnamed = [name for name in present if spoken([name])[0] not in found.classes]
        told = [f"no images of {listed(unknown, 6)}"] if unknown else []
        told += [f"images of {listed(unnamed, 6)}, not named"] if unnamed else []
        if told:
            raise VitkitError(f"--classes must name the classes of the images: {table.name} has {' and '.join(told)}")
        _tell_of_names(found, note)
        return replace(found, classes=tuple(label_of[name] for name in found.classes))

    return named


def _tell_of_names(classifier: Classifier, note: Say) -> None:
    used = ", ".join(repr(template) for template in classifier.provenance["templates"])
    how = "softmax: exactly one of the classes" if classifier.task == "single" else "sigmoid: each class by itself"
    note(f"{len(classifier.classes)} classes by name, as {used}; {how}")


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
    for caveat in found.images.report.caveats():
        note(caveat)
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
