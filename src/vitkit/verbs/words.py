"""What verbs do with words: classes by name, in the place of a model that was trained on them."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from vitkit.data.csv_rows import refuse_encoding
from vitkit.errors import VitkitError
from vitkit.system.progress import Say
from vitkit.text.cells import JOINT, listed
from vitkit.verbs.inputs import open_model

if TYPE_CHECKING:
    from vitkit.classifier import Classifier
    from vitkit.data.table import ImageTable
    from vitkit.language.zero_shot import ImagesAndWords
    from vitkit.weights.preprocessing import PreprocessLike


def open_named(
    model: str | Path | Classifier,
    classes: str | Sequence[str] | None,
    templates: Sequence[str],
    note: Say,
    *,
    one: bool | None,
    preprocess: PreprocessLike | None = None,
) -> Classifier:
    """The classifier that is meant; of classes by name, where some are named.

    Args:
        model: as of `open_model`; with `classes`, what holds a text encoder.
        classes: as of `named_classes`; None: those of the model.
        templates: sentences with {} where the name goes; none: as published.
        note: told what was assumed, a line each, and how probabilities are made.
        one: as of `ImagesAndWords.classifier`.
        preprocess: how images are read, in the place of what the model says or is assumed to read.

    Raises:
        VitkitError: the model cannot be loaded, or has no words.
    """
    if classes is None:
        if templates or one is not None:
            raise VitkitError(f"{'--template' if templates else '--one'} is for classes by name: give --classes too")
        return open_model(model, note, preprocess=preprocess)
    classifier = open_words(model, note, preprocess).classifier(named_classes(classes), templates, one=one)
    _tell_of_names(classifier, note)
    return classifier


def open_for_labels(
    model: str | Path | Classifier,
    classes: str | Sequence[str] | None,
    templates: Sequence[str],
    note: Say,
    preprocess: PreprocessLike | None = None,
) -> Callable[[ImageTable], Classifier]:
    """As `open_named`, for labelled images, from which the classifier is had: classes by name are theirs, each of them.

    An image with one label has exactly one of the classes; so the answers of SigLIP are a softmax then, too.

    Raises:
        VitkitError: as `open_named`; and once it is asked, a name is of no images, or a class of images is not named.
    """
    if classes is None:
        opened = open_named(model, None, templates, note, one=None, preprocess=preprocess)
        return lambda _table: opened
    from vitkit.language.zero_shot import spoken

    words = open_words(model, note, preprocess)
    names = spoken([name.strip() for name in named_classes(classes)])

    def named(table: ImageTable) -> Classifier:
        found = words.classifier(names, templates, one=None if table.task.is_sigmoid else True)
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


def open_words(model: str | Path | Classifier, note: Say, preprocess: PreprocessLike | None = None) -> ImagesAndWords:
    """A model of images and words.

    Raises:
        VitkitError: it cannot be loaded, or has no words.
    """
    from vitkit.language.zero_shot import read_images_and_words

    if not isinstance(model, (str, Path)):
        raise VitkitError("words need the files of CLIP or SigLIP, not a classifier in memory: give their folder")
    found = read_images_and_words(model, preprocess=preprocess)
    assert found.images.report is not None
    for caveat in found.images.report.caveats():
        note(caveat)
    return found


def named_classes(classes: str | Sequence[str]) -> list[str]:
    """Names of classes: a list; text with commas (or semicolons) between them; or the name of a file that lists them.

    Of a .txt file each line is a name; of a .csv or .tsv file each cell of its column class, label or name, or of its
    only column; of a .json file each item of its list, or each name that it numbers, as class_indices.json does.

    Raises:
        VitkitError: the file is not there, or lists no classes; or a name holds what separates others.
    """
    if not isinstance(classes, str):
        return list(classes)
    path = Path(classes)
    if path.suffix.lower() in _LISTS:
        return _LISTS[path.suffix.lower()](_text_of(path), f"--classes {classes}")
    is_path = os.sep in classes or "/" in classes or bool(path.suffix)
    if is_path and os.path.exists(classes):  # noqa: PTH110  # False of text that is too long for a path, too
        kinds = ", ".join(_LISTS)
        raise VitkitError(
            f"--classes {classes} is a file or folder, and no list of classes: expected {kinds}, or names"
        )
    return _of_text(classes, "--classes")


_COLUMNS = ("class", "label", "name", "classes", "labels", "names")
_WIDE = {0xFF0C: ",", 0x3001: ",", 0xFF1B: ";"}  # commas and the semicolon of Chinese and Japanese
_QUOTES = {"'": "'", "\u2018": "\u2019", "\u201c": "\u201d"}  # beside those that CSV knows


def _text_of(path: Path) -> str:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise VitkitError(f"--classes {path}: cannot be read: {error}") from error
    refuse_encoding(f"--classes {path}", data)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise VitkitError(f"--classes {path}: cannot be read: it is not in UTF-8 ({error.reason})") from error


def _of_text(text: str, what: str) -> list[str]:
    """Names with commas, semicolons or line ends between them; quotes hold those that have commas themselves."""
    lines = [line.translate(_WIDE) for line in text.splitlines() if line.strip()]
    delimiter = "," if any("," in line for line in lines) else ";"
    try:
        rows = csv.reader(lines, delimiter=delimiter, skipinitialspace=True, strict=True)
        names = [name.strip() for row in rows for name in row]
    except csv.Error as error:
        raise VitkitError(f"{what} {text!r:.60}: a quote is not closed, or stands within a name ({error})") from error
    if names and all(len(name) > 1 and _QUOTES.get(name[0]) == name[-1] for name in names if name):
        names = [name[1:-1].strip() for name in names if name]
    return _without_joints(names, what)


def _of_lines(text: str, what: str) -> list[str]:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return _of_text(lines[0], what) if len(lines) == 1 else _without_joints(lines, what)


def _of_table(text: str, what: str) -> list[str]:
    try:
        header = next(iter(text.splitlines()), "")
        rows = list(csv.reader(io.StringIO(text), delimiter=max(",;\t", key=header.count), strict=True))
    except csv.Error as error:
        raise VitkitError(f"{what} is no CSV file: {error}") from error
    rows = [[cell.strip() for cell in row] for row in rows if any(cell.strip() for cell in row)]
    titles = [title.lower() for title in rows[0]] if rows else []
    found = next((titles.index(name) for name in _COLUMNS if name in titles), None)
    if found is None and any(len([cell for cell in row if cell]) > 1 for row in rows):
        raise VitkitError(f"{what} needs a column called class, label or name; it has: {', '.join(rows[0])}")
    cells = [row[0] for row in rows] if found is None else [row[found] for row in rows[1:] if len(row) > found]
    return _without_joints(list(dict.fromkeys(filter(None, cells))), what)


def _of_json(text: str, what: str) -> list[str]:
    from vitkit.system.files import from_json
    from vitkit.weights.catalog import numbered_names

    try:
        found = from_json(text)
        names = list(numbered_names(found)) if isinstance(found, dict) else found
    except (ValueError, TypeError, AttributeError) as error:
        raise VitkitError(f"{what} names no classes: {error}") from error
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise VitkitError(f"{what} names no classes: expected a list of names, or names by number")
    return _without_joints(names, what)


def _without_joints(names: list[str], what: str) -> list[str]:
    if (joined := next((name for name in names if JOINT in name), None)) is not None:
        raise VitkitError(f"{what}: {joined!r} holds a semicolon, which no class name does: name its parts one by one")
    return names


_LISTS = {".txt": _of_lines, ".csv": _of_table, ".tsv": _of_table, ".json": _of_json}
