"""Read class names, and open classifiers for them from models of images and text (CLIP and SigLIP).

`open_named` opens a classifier for any images. `open_for_labels` opens a classifier for labelled images, and checks
that the names are the classes of these images. `named_classes` reads names from text or from a file.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from vitkit.data.labels import refuse_encoding
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
    """Open a classifier, with the classes of the model or with classes by name.

    Args:
        model: a model as for `open_model`; with `classes`, one that has a text encoder.
        classes: names as for `named_classes`; None for the classes of the model.
        templates: sentences with {} in place of the name; by default the published ones.
        note: called with a line about each assumption, and with a line about how probabilities are computed.
        one: whether each image has exactly one class, as for `ImagesAndWords.classifier`.
        preprocess: the preprocessing to use; None for the one that the model specifies or that is assumed for it.

    Raises:
        VitkitError: the model cannot be loaded or has no text encoder, or `templates` or `one` is passed without
            `classes`.
    """
    if classes is None:
        if templates or one is not None:
            raise VitkitError(f"{'--template' if templates else '--one'} requires classes by name: add --classes")
        return open_model(model, note, preprocess=preprocess)
    classifier = open_images_and_words(model, note, preprocess).classifier(named_classes(classes), templates, one=one)
    _note_names(classifier, note)
    return classifier


def open_for_labels(
    model: str | Path | Classifier,
    classes: str | Sequence[str] | None,
    templates: Sequence[str],
    note: Say,
    preprocess: PreprocessLike | None = None,
) -> Callable[[ImageTable], Classifier]:
    """Open a model for labelled images, and return a function that makes the classifier for a table of images.

    The named classes must be exactly the classes of the images. If each image has one label, the probabilities are a
    softmax over the classes, even for SigLIP.

    Raises:
        VitkitError: the model cannot be loaded, or has no text encoder. The returned function raises this error if a
            named class has no image, or if a class of the images is not named.
    """
    if classes is None:
        opened = open_named(model, None, templates, note, one=None, preprocess=preprocess)
        return lambda _table: opened
    from vitkit.language.zero_shot import spoken

    words = open_images_and_words(model, note, preprocess)
    names = spoken([name.strip() for name in named_classes(classes)])

    def named(table: ImageTable) -> Classifier:
        classifier = words.classifier(names, templates, one=None if table.task.is_sigmoid else True)
        present = [name for name, count in table.counts().items() if count]
        label_of = dict(zip(spoken(present), present, strict=True))
        unknown = [name for name in classifier.classes if name not in label_of]
        unnamed = [name for name in present if spoken([name])[0] not in classifier.classes]
        problems = [f"no images of {listed(unknown, 6)}"] if unknown else []
        problems += [f"images of {listed(unnamed, 6)}, which are not named"] if unnamed else []
        if problems:
            raise VitkitError(
                f"--classes must name the classes of the images: {table.name} has {' and '.join(problems)}"
            )
        _note_names(classifier, note)
        return replace(classifier, classes=tuple(label_of[name] for name in classifier.classes))

    return named


def _note_names(classifier: Classifier, note: Say) -> None:
    templates = ", ".join(repr(template) for template in classifier.provenance["templates"])
    how = "softmax: exactly one of the classes" if classifier.task == "single" else "sigmoid: each class by itself"
    note(f"{len(classifier.classes)} classes by name, as {templates}; {how}")


def open_images_and_words(
    model: str | Path | Classifier, note: Say, preprocess: PreprocessLike | None = None
) -> ImagesAndWords:
    """Open a model of images and text, and note each assumption about it.

    Raises:
        VitkitError: the model cannot be loaded, or has no text encoder.
    """
    from vitkit.language.zero_shot import read_images_and_words

    if not isinstance(model, (str, Path)):
        raise VitkitError("text requires the files of CLIP or SigLIP, not a classifier in memory: pass their folder")
    words = read_images_and_words(model, preprocess=preprocess)
    assert words.images.report is not None
    for caveat in words.images.report.caveats():
        note(caveat)
    return words


def named_classes(classes: str | Sequence[str]) -> list[str]:
    """Return class names from a list, from text with commas or semicolons between the names, or from a file.

    In a .txt file, each line is a name; a single line is read like text. A .csv or .tsv file has the names in its
    column class, label or name, or in its only column. A .json file contains a list, or an object with numbers and
    names as in class_indices.json.

    Raises:
        VitkitError: the file does not exist or lists no classes, or a name contains a semicolon.
    """
    if not isinstance(classes, str):
        return list(classes)
    path = Path(classes)
    if path.suffix.lower() in _LISTS:
        return _LISTS[path.suffix.lower()](_read_list(path), f"--classes {classes}")
    is_path = os.sep in classes or "/" in classes or bool(path.suffix)
    if is_path and os.path.exists(classes):  # noqa: PTH110  # Path.exists fails for text that is too long for a path
        kinds = ", ".join(_LISTS)
        raise VitkitError(f"--classes {classes} is not a list of classes: expected a file {kinds}, or names")
    return _names_in_text(classes, "--classes")


_COLUMNS = ("class", "label", "name", "classes", "labels", "names")
_WIDE = {0xFF0C: ",", 0x3001: ",", 0xFF1B: ";"}  # commas and the semicolon of Chinese and Japanese
_QUOTES = {"'": "'", "\u2018": "\u2019", "\u201c": "\u201d"}  # in addition to those of CSV


def _read_list(path: Path) -> str:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise VitkitError(f"--classes {path}: cannot be read: {error}") from error
    refuse_encoding(f"--classes {path}", data)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise VitkitError(f"--classes {path}: cannot be read: it is not in UTF-8 ({error.reason})") from error


def _names_in_text(text: str, what: str) -> list[str]:
    """Split names at commas, semicolons or line ends. A name that contains a comma must be quoted."""
    lines = [line.translate(_WIDE) for line in text.splitlines() if line.strip()]
    delimiter = "," if any("," in line for line in lines) else ";"
    try:
        rows = csv.reader(lines, delimiter=delimiter, skipinitialspace=True, strict=True)
        names = [name.strip() for row in rows for name in row]
    except csv.Error as error:
        raise VitkitError(f"{what} {text!r:.60}: a quote is not closed, or is inside a name ({error})") from error
    if names and all(len(name) > 1 and _QUOTES.get(name[0]) == name[-1] for name in names if name):
        names = [name[1:-1].strip() for name in names if name]
    return _check_separators(names, what)


def _names_in_lines(text: str, what: str) -> list[str]:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return _names_in_text(lines[0], what) if len(lines) == 1 else _check_separators(lines, what)


def _names_in_table(text: str, what: str) -> list[str]:
    try:
        header = next(iter(text.splitlines()), "")
        rows = list(csv.reader(io.StringIO(text), delimiter=max(",;\t", key=header.count), strict=True))
    except csv.Error as error:
        raise VitkitError(f"{what} is not a CSV file: {error}") from error
    rows = [[cell.strip() for cell in row] for row in rows if any(cell.strip() for cell in row)]
    titles = [title.lower() for title in rows[0]] if rows else []
    column = next((titles.index(name) for name in _COLUMNS if name in titles), None)
    if column is None and any(len([cell for cell in row if cell]) > 1 for row in rows):
        raise VitkitError(f"{what} needs a column called class, label or name; it has: {', '.join(rows[0])}")
    cells = [row[0] for row in rows] if column is None else [row[column] for row in rows[1:] if len(row) > column]
    return _check_separators(list(dict.fromkeys(filter(None, cells))), what)


def _names_in_json(text: str, what: str) -> list[str]:
    from vitkit.system.files import from_json
    from vitkit.weights.catalog import numbered_names

    try:
        value = from_json(text)
        names = list(numbered_names(value)) if isinstance(value, dict) else value
    except (ValueError, TypeError, AttributeError) as error:
        raise VitkitError(f"{what} names no classes: {error}") from error
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise VitkitError(f"{what} contains no classes: expected a list of names, or an object from number to name")
    return _check_separators(names, what)


def _check_separators(names: list[str], what: str) -> list[str]:
    if (joined := next((name for name in names if JOINT in name), None)) is not None:
        raise VitkitError(
            f"{what}: {joined!r} contains a semicolon, which class names must not contain: list its parts separately"
        )
    return names


_LISTS = {".txt": _names_in_lines, ".csv": _names_in_table, ".tsv": _names_in_table, ".json": _names_in_json}
