"""Correct the labels of images: apply the label files of people.

A label file changes the classes of images, leaves images out, and adds images. Images that it does not name keep their
class. If a run uses the split of an earlier run (`split_from`), images also keep their split
(docs/decisions/0028-label-files.md).

Labels that a person accepted on the suggestion of a model are marked in the file (`proposed_by`). The table records the
labels before (`ImageTable.earlier`), because a test with the new labels would favour the model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from vitkit.data.earlier_labels import renamed_classes
from vitkit.data.labels import EXCLUDED, Edit, LabelFile, PathFinder, read_labels
from vitkit.data.layout import LayoutName
from vitkit.data.sources import check_classes, has_no_folders, read_table, read_unlabelled
from vitkit.data.table import (
    MULTI_LABEL,
    SINGLE_LABEL,
    UNLABELLED,
    EarlierLabel,
    ImageTable,
    Row,
    Task,
    normal_form,
    without_invisible,
)
from vitkit.errors import VitkitError
from vitkit.system.files import public_path
from vitkit.text.cells import listed, plural


def read_corrected(
    data: str | Path,
    labels: str | Path | None,
    layout: LayoutName = "auto",
    *,
    follow_links: bool = False,
    may_be_one_class: bool = False,
) -> ImageTable:
    """Read a source as `read_source` does, and apply a label file if there is one.

    Pictures in a folder without class folders, or in a class folder called `unlabelled`, get their class from the label
    file. Such pictures are left out if the label file does not name them.

    Args:
        data: a folder, a file or the name of a data set.
        labels: the label file; None to change nothing.
        layout: how to read the folders in the data's folder: as `classes` or as `splits`. `auto` decides by their names
            and contents.
        follow_links: also search the folders and files that links lead to outside of the folder.
        may_be_one_class: whether to accept data in which all images have the same class. A classifier can be tested on
            such data, but not trained on them.

    Raises:
        VitkitError: the data or the label file cannot be understood, or fewer than two classes remain although
            `may_be_one_class` is False.
    """
    if labels is None:
        table = read_table(data, layout, follow_links=follow_links)
    else:
        labels_in_file = read_labels(labels)
        is_flat = layout == "auto" and has_no_folders(data, follow_links=follow_links)
        read = read_unlabelled if is_flat else partial(read_table, layout=layout)
        table = correct(read(data, follow_links=follow_links), labels_in_file)
    if not may_be_one_class:
        check_classes(table)
    return table


def labels_of(table: ImageTable) -> list[tuple[str, str]]:
    """Return the path and the label of each image, as they are written in label files."""
    return [(path, table.cell_of(i)) for i, path in enumerate(table.paths)]


def correct(table: ImageTable, labels: LabelFile, *, may_add: bool = True) -> ImageTable:
    """Apply a label file to a table, and record a description of the changes in the table.

    Args:
        table: the images, split or not.
        labels: the rows of the label file.
        may_add: whether to add pictures that are not in the table, but are named in the label file and exist in the
            data's folder.

    Returns:
        The corrected table: the remaining rows in their order, then the added rows. Classes are sorted, and classes
        without a picture are dropped. `corrections` describes the changes, and `unmatched` describes the rows without
        effect.

    Raises:
        VitkitError: a label names several classes in a single-label table; nothing remains; or the label file is a list
            of suspected label errors that nobody has edited.
    """
    edited = _apply(table, labels, PathFinder(table.root, table.paths), may_add=may_add)
    before = [table.cell_of(i) for i in range(len(table))]
    after = edited.labels

    # An added picture gets the split of its folder. In a table with splits, other pictures cannot be added.
    added = {path: label for path, label in edited.added.items() if label != EXCLUDED}
    split_of_folder = _splits_of_folders(table)
    split_of_added = {path: split_of_folder.get(path.split("/")[0]) for path in added}
    outside: list[str] = []
    if any(table.splits):
        outside = [path for path, split in split_of_added.items() if split is None]
        for path in outside:
            del added[path]
    if labels.has_suspects and not added and after == before:
        raise VitkitError(
            "data.labels-unchanged",
            f"{labels.name} lists suspected label errors, but changes none: write the right labels into the "
            f"column label (an empty one leaves the picture out), or inspect them first: vitkit doctor {labels.name}",
        )

    rows: list[Row] = list(zip(table.paths, after, table.splits, strict=True))
    rows += [(path, label, split_of_added[path]) for path, label in added.items()]
    changed = _with_rows(table, rows, edited.task)

    # The labels before the first proposals, with the current names of their classes, and those of earlier label files.
    pairs = [
        (old, new) for path, old, new in zip(table.paths, before, after, strict=True) if path not in edited.proposed
    ]
    new_name = renamed_classes(pairs, changed)
    earlier = {
        path: item._replace(before=new_name.get(item.before, item.before)) for path, item in edited.proposed.items()
    }
    earlier.update({item.path: item for item in table.earlier})
    current = dict(zip(table.paths, after, strict=True)) | added
    earlier = {path: item for path, item in earlier.items() if item.before != current.get(path)}

    name = public_path(labels.name)
    new_proposals = earlier.keys() - {item.path for item in table.earlier}
    notes = _describe(name, table, changed, before, edited, added=len(added), proposed=len(new_proposals))
    unmatched = _describe_unmatched(name, table, edited.unmatched)
    if outside:
        pictures = plural(len(outside), "picture", "pictures")
        because = f"because {'it lies' if len(outside) == 1 else 'they lie'} outside the folders of the data's splits"
        unmatched.append(f"{pictures} of {name} left out, {because}: {listed(outside)}")
    left_out = list(table.left_out)
    for i, edits in edited.edits.items():
        if after[i] == EXCLUDED:
            last_label = before[i]
            for edit in edits:
                if edit.label != EXCLUDED:
                    last_label = edit.label
            left_out.append((table.paths[i], last_label, table.splits[i]))
    return replace(
        changed,
        left_out=tuple(left_out),
        earlier=tuple(earlier.values()),
        corrections=(*table.corrections, *notes),
        unmatched=(*table.unmatched, *unmatched),
    )


# --- The steps of a correction -------------------------------------------------------------------------------


@dataclass
class _EditedLabels:
    """The labels of images after all rows of a label file have been applied."""

    task: Task
    labels: list[str]  # of each image of the table; `EXCLUDED` if it is left out
    edits: dict[int, list[Edit]] = field(default_factory=dict)  # the rows of each image of the table that has any
    added: dict[str, str] = field(default_factory=dict)  # by path: the labels of pictures that are not in the table
    proposed: dict[str, EarlierLabel] = field(default_factory=dict)  # by path: the label before the first proposal
    unmatched: list[str] = field(default_factory=list)  # the paths of rows that match no picture


def _apply(table: ImageTable, labels: LabelFile, finder: PathFinder, *, may_add: bool = True) -> _EditedLabels:
    """Apply the rows of a label file in their order, with class names in the spelling of the table.

    `finder` finds the images of the table by path.
    """
    task = table.task
    if table.classes == (UNLABELLED,) and any(SINGLE_LABEL.refuses(edit.label) for edit in labels.edits):
        task = MULTI_LABEL  # the table has no classes yet, so the label file decides
    result = _EditedLabels(task, [table.cell_of(i) for i in range(len(table))])
    # Class names that look the same denote the same class. They may differ because accents are encoded differently, as
    # in folder names on macOS, or because text copied from a web page contains zero-width spaces.
    spellings = {normal_form(name): name for name in table.classes}
    for line, written in zip(labels.lines, labels.edits, strict=True):
        edit = written
        if written.label not in table.classes:  # a class may contain a separator
            label = without_invisible(written.label).strip()
            if label not in (EXCLUDED, *table.classes):
                if task.refuses(label):
                    raise VitkitError(
                        "data.label-several-classes",
                        f"{labels.name}, line {line}: {label!r} has several classes, but the pictures of {table.name} "
                        "have one each; to allow several, list the pictures in a CSV whose label column is named "
                        "'labels'",
                    )
                # A name that is new to the table counts as a class from here on.
                names = task.names_in(label)
                label = task.label_of(spellings.setdefault(normal_form(name), name) for name in names)
            edit = written._replace(label=label)

        images = finder.find(edit.path)
        for i in images:
            path, current = table.paths[i], result.labels[i]
            if edit.proposed_by:
                old = edit.previous if edit.previous in table.classes else current
                result.proposed.setdefault(path, EarlierLabel(path, old, edit.proposed_by))
            result.labels[i] = edit.label
            result.edits.setdefault(i, []).append(edit)
        if images:
            continue
        unlisted = finder.find_unlisted(edit.path) if may_add else None
        if unlisted is not None:
            result.added[unlisted] = edit.label
            if edit.proposed_by:
                result.proposed.setdefault(unlisted, EarlierLabel(unlisted, UNLABELLED, edit.proposed_by))
        elif may_add or edit.label != EXCLUDED:  # a run's table does not contain the pictures that it left out
            result.unmatched.append(edit.path)
    result.unmatched = list(dict.fromkeys(result.unmatched))
    return result


def _splits_of_folders(table: ImageTable) -> dict[str, str | None]:
    """Return the split of each outermost folder whose images all have the same split."""
    splits_in: dict[str, set[str | None]] = {}
    for path, split in zip(table.paths, table.splits, strict=True):
        folder, slash, _ = path.partition("/")
        if slash:
            splits_in.setdefault(folder, set()).add(split)
    return {folder: splits.pop() for folder, splits in splits_in.items() if len(splits) == 1}


def _with_rows(table: ImageTable, rows: Sequence[Row], task: Task) -> ImageTable:
    """Return the table with other rows. Those without a label are dropped, and classes without a picture, too."""
    rows = [(path, label, split) for path, label, split in rows if label not in (EXCLUDED, UNLABELLED)]
    if not rows:
        raise VitkitError(
            "data.images-missing",
            f"{table.name}: the label file leaves out every picture, or gives none of them a class",
        )
    paths, labels, splits = zip(*rows, strict=True)
    names_of_images = [task.names_in(label) for label in labels]
    classes = tuple(sorted({name for names in names_of_images for name in names}))
    number = {name: i for i, name in enumerate(classes)}
    sets, encoded = task.encode([tuple(sorted(number[name] for name in names)) for names in names_of_images])
    return replace(
        table,
        classes=classes,
        paths=paths,
        labels=encoded,
        splits=splits,
        sets=sets,
        empty=tuple(name for name in table.empty if name not in classes),
    )


# --- Descriptions for users ----------------------------------------------------------------------------------


def _describe(
    name: str,
    table: ImageTable,
    changed: ImageTable,
    before: Sequence[str],
    edited: _EditedLabels,
    *,
    added: int,
    proposed: int,
) -> Iterator[str]:
    """Yield sentences about the effect of a label file. `added` and `proposed` are numbers of images."""
    changes = Counter[str]()
    for old, new in zip(before, edited.labels, strict=True):
        if old == new:
            continue
        if new == EXCLUDED:
            changes["left out"] += 1
        elif old == UNLABELLED:
            changes["labelled"] += 1
        else:
            changes["with another label"] += 1
    if added:
        changes["added"] = added
    counts = ", ".join(f"{plural(count, 'picture', 'pictures')} {change}" for change, count in changes.items())
    yield f"{name}: {counts or 'changes no label'}{f' ({proposed} proposed by a model)' if proposed else ''}"

    old_classes, new_classes = set(table.classes) - {UNLABELLED}, set(changed.classes)
    if gained := sorted(new_classes - old_classes):
        yield f"{name} adds the {'class' if len(gained) == 1 else 'classes'} {listed(gained, 10)}"
    if emptied := sorted(old_classes - new_classes):
        yield f"{name} leaves no picture in the {'class' if len(emptied) == 1 else 'classes'} {listed(emptied, 10)}"
    if unlabelled := edited.labels.count(UNLABELLED):
        yield f"{plural(unlabelled, 'picture without a label yet is', 'pictures without a label yet are')} left out"

    stale = []  # images that got another class in the data after the label file was written
    for i, edits in edited.edits.items():
        known = {edits[0].previous, *(edit.label for edit in edits)}
        if known.isdisjoint(("", UNLABELLED, before[i])):
            stale.append(table.paths[i])
    if stale:
        yield (
            f"{plural(len(stale), 'picture is', 'pictures are')} in another class of the data than when {name} was "
            f"written; the labels of {name} are used: {listed(stale)}"
        )


def _describe_unmatched(name: str, table: ImageTable, unmatched: Sequence[str]) -> list[str]:
    if not unmatched:
        return []
    path, match, change = ("path", "matches", "changes") if len(unmatched) == 1 else ("paths", "match", "change")
    effect = f"{len(unmatched)} {path} of {name} {match} no picture of {table.name}, and {change} nothing"
    return [f"{effect}: {listed(unmatched)}; paths must be relative to the data's folder, or absolute"]


# --- Corrections one by one ----------------------------------------------------------------------------------


class CurrentLabels:
    """The current labels of a table's images, while rows are added to a label file.

    Attributes:
        labels: the current label of each image, written as in a label file; `EXCLUDED` if the image is left out.
        unmatched: the paths in the label file that match no image of the table and no file in the data's folder.
    """

    def __init__(self, table: ImageTable) -> None:
        self._table = table
        self._finder = PathFinder(table.root, table.paths)
        self.take(LabelFile(""))

    def take(self, file: LabelFile) -> None:
        """Apply the rows of a label file, in place of those of the last call.

        Raises:
            VitkitError: a label names several classes in a single-label table.
        """
        edited = _apply(self._table, file, self._finder)
        self.labels, self.unmatched = edited.labels, edited.unmatched

    def describe_lost(self, name: str) -> list[str]:
        """Describe the rows of the label file that match no picture."""
        return _describe_unmatched(name, self._table, self.unmatched)
