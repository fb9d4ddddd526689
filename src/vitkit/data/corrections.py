"""Correct the labels of images: apply the label files of people.

A label file changes the classes of images, leaves images out, and adds images. Images that it does not name keep their
class. If a run uses the split of an earlier run (`split_from`), images also keep their split
(docs/decisions/0028-label-files.md).

Labels that a person accepted on the suggestion of a model are marked in the file (`proposed_by`). The table records the
labels before (`ImageTable.earlier`), because a test with the new labels would favour the model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
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
    # Apply the rows of the file in their order.
    before = [table.cell_of(i) for i in range(len(table))]
    after, finder = list(before), PathFinder(table.root, table.paths)
    spellings, task = {normal_form(name): name for name in table.classes}, _task_with(table, labels)
    added, lost = dict[str, str](), dict[str, None]()  # the labels of added pictures by path; paths without a picture
    mentioned: dict[int, set[str]] = {}  # for each image: its first previous label, and all of its labels in the file
    last = dict[int, str]()  # for each image: the last label that did not leave it out
    proposed = dict[str, EarlierLabel]()  # by path: the label before the first proposal of a model
    for edit, label, images in _edits_with_images(table, labels, finder, spellings, task):
        for i in images:
            mentioned.setdefault(i, {edit.previous}).add(label)
            if edit.proposed_by:
                old = edit.previous if edit.previous in table.classes else after[i]
                proposed.setdefault(table.paths[i], EarlierLabel(table.paths[i], old, edit.proposed_by))
            if after[i] != EXCLUDED:
                last[i] = after[i]
            after[i] = label
        if images:
            continue
        if may_add and (path := finder.find_unlisted(edit.path)) is not None:
            added[path] = label
            if edit.proposed_by:
                proposed.setdefault(path, EarlierLabel(path, UNLABELLED, edit.proposed_by))
        elif may_add or label != EXCLUDED:  # a run's table does not contain the pictures that it left out
            lost[edit.path] = None

    # An added picture gets the split of its folder, if all images of the folder have the same split.
    splits_of_folder: dict[str, set[str | None]] = {}
    for path, split in zip(table.paths, table.splits, strict=True):
        if "/" in path:
            splits_of_folder.setdefault(path.split("/")[0], set()).add(split)
    split_of = {folder: splits.pop() for folder, splits in splits_of_folder.items() if len(splits) == 1}
    added = {path: label for path, label in added.items() if label != EXCLUDED}
    outside = [path for path in added if not split_of.get(path.split("/")[0])] if any(table.splits) else []
    for path in outside:
        del added[path]
    if labels.has_suspects and not added and after == before:
        raise VitkitError(
            "data.labels-unchanged",
            f"{labels.name} lists suspected label errors, but changes none: write the right labels into the "
            f"column label (an empty one leaves the picture out), or inspect them first: vitkit doctor {labels.name}",
        )

    # Build a table of the remaining images and the added ones, with the classes that are left.
    rows = [(table.paths[i], label, table.splits[i]) for i, label in enumerate(after)]
    rows += [(path, label, split_of.get(path.split("/")[0])) for path, label in added.items()]
    rows = [row for row in rows if row[1] not in (EXCLUDED, UNLABELLED)]
    if not rows:
        raise VitkitError(
            "data.images-missing",
            f"{table.name}: the label file leaves out every picture, or gives none of them a class",
        )
    names_of_labels = [task.names_in(label) for _, label, _ in rows]
    classes = tuple(sorted({name for names in names_of_labels for name in names}))
    number = {name: i for i, name in enumerate(classes)}
    sets, numbers = task.encode([tuple(sorted(number[name] for name in names)) for names in names_of_labels])
    changed = replace(
        table,
        classes=classes,
        paths=tuple(path for path, _, _ in rows),
        labels=numbers,
        splits=tuple(split for _, _, split in rows),
        sets=sets,
        empty=tuple(name for name in table.empty if name not in classes),
    )

    # The labels before the first proposals, with the current names of their classes, and those of earlier label files.
    pairs = ((old, new) for path, old, new in zip(table.paths, before, after, strict=True) if path not in proposed)
    new_name = renamed_classes(pairs, changed)
    earlier = {path: item._replace(before=new_name.get(item.before, item.before)) for path, item in proposed.items()}
    earlier |= {item.path: item for item in table.earlier}
    label_of = dict(zip(table.paths, after, strict=True)) | added
    earlier = {path: item for path, item in earlier.items() if label_of.get(path) != item.before}

    # Describe what the user should know.
    stale = [table.paths[i] for i, names in mentioned.items() if not names & {"", UNLABELLED, before[i]}]
    new_proposals = len(earlier.keys() - {item.path for item in table.earlier})
    name = public_path(labels.name)
    notes = _describe(name, table, changed, list(zip(before, after, strict=True)), len(added), new_proposals, stale)
    unmatched = _describe_lost(name, table, lost)
    if outside:
        pictures = plural(len(outside), "picture", "pictures")
        because = f"because {'it lies' if len(outside) == 1 else 'they lie'} outside the folders of the data's splits"
        unmatched.append(f"{pictures} of {name} left out, {because}: {listed(outside)}")
    left_out = [(table.paths[i], last[i], table.splits[i]) for i in last if after[i] == EXCLUDED]
    return replace(
        changed,
        left_out=(*table.left_out, *left_out),
        earlier=tuple(earlier.values()),
        corrections=(*table.corrections, *notes),
        unmatched=(*table.unmatched, *unmatched),
    )


def _describe(
    name: str,
    table: ImageTable,
    changed: ImageTable,
    labels: Sequence[tuple[str, str]],
    added: int,
    proposed: int,
    stale: Sequence[str],
) -> Iterator[str]:
    """Yield sentences about the effect of a label file.

    `labels` are the labels of each image before and after. `added` and `proposed` are numbers of images, and `stale`
    the paths of images whose class in the data has changed since the label file was written.
    """
    changes = Counter(
        "left out" if new == EXCLUDED else "labelled" if old == UNLABELLED else "with another label"
        for old, new in labels
        if old != new
    )
    if added:
        changes["added"] = added
    counts = ", ".join(f"{plural(count, 'picture', 'pictures')} {change}" for change, count in changes.items())
    yield f"{name}: {counts or 'changes no label'}{f' ({proposed} proposed by a model)' if proposed else ''}"
    old_classes, new_classes = set(table.classes) - {UNLABELLED}, set(changed.classes)
    if gained := sorted(new_classes - old_classes):
        yield f"{name} adds the {'class' if len(gained) == 1 else 'classes'} {listed(gained, 10)}"
    if emptied := sorted(old_classes - new_classes):
        yield f"{name} leaves no picture in the {'class' if len(emptied) == 1 else 'classes'} {listed(emptied, 10)}"
    if unlabelled := sum(label == UNLABELLED for _, label in labels):
        yield f"{plural(unlabelled, 'picture without a label yet is', 'pictures without a label yet are')} left out"
    if stale:
        yield (
            f"{plural(len(stale), 'picture is', 'pictures are')} in another class of the data than when {name} was "
            f"written; the labels of {name} are used: {listed(stale)}"
        )


def _task_with(table: ImageTable, labels: LabelFile) -> Task:
    """Return the task of a table, or the task that the label file implies if the table has no classes yet."""
    if table.classes == (UNLABELLED,) and any(SINGLE_LABEL.refuses(edit.label) for edit in labels.edits):
        return MULTI_LABEL
    return table.task


def _edits_with_images(
    table: ImageTable, labels: LabelFile, finder: PathFinder, spellings: dict[str, str], task: Task
) -> Iterator[tuple[Edit, str, Sequence[int]]]:
    """Yield each row of a label file, its label in the spelling of the table, and the indices of its images.

    Class names that look the same denote the same class. They may differ because accents are encoded differently, as in
    folder names on macOS, or because text copied from a web page contains zero-width spaces. `spellings` has the name
    of each class by its normal form; new classes are added to it.
    """
    for line, edit in zip(labels.lines, labels.edits, strict=True):
        label = edit.label if edit.label in table.classes else without_invisible(edit.label).strip()
        if label not in (EXCLUDED, *table.classes):  # a class of the table may contain a separator
            if task.refuses(label):
                raise VitkitError(
                    "data.label-several-classes",
                    f"{labels.name}, line {line}: {label!r} has several classes, but the pictures of {table.name} have "
                    "one each; to allow several, list the pictures in a CSV whose label column is named 'labels'",
                )
            label = task.label_of(spellings.setdefault(normal_form(part), part) for part in task.names_in(label))
        yield edit, label, finder.find(edit.path)


def _describe_lost(name: str, table: ImageTable, lost: Collection[str]) -> list[str]:
    if not lost:
        return []
    path, match, change = ("path", "matches", "changes") if len(lost) == 1 else ("paths", "match", "change")
    effect = f"{len(lost)} {path} of {name} {match} no picture of {table.name}, and {change} nothing"
    return [f"{effect}: {listed(list(lost))}; paths must be relative to the data's folder, or absolute"]


# --- Corrections one by one ----------------------------------------------------------------------------------


class CurrentLabels:
    """The current labels of a table's images, while rows are added to a label file.

    Attributes:
        labels: the current label of each image, written as in a label file; `EXCLUDED` if the image is left out.
        lost: the paths in the label file (as keys) that match no image of the table and no file in the data's folder.
    """

    def __init__(self, table: ImageTable) -> None:
        self._table, self._finder = table, PathFinder(table.root, table.paths)
        self.labels = [table.cell_of(i) for i in range(len(table))]
        self.lost: dict[str, None] = {}

    def take(self, file: LabelFile) -> None:
        """Apply the rows of a label file, in place of those of the last call.

        Raises:
            VitkitError: a label names several classes in a single-label table.
        """
        table = self._table
        labels, lost = [table.cell_of(i) for i in range(len(table))], dict[str, None]()
        spellings, task = {normal_form(name): name for name in table.classes}, _task_with(table, file)
        for edit, label, images in _edits_with_images(table, file, self._finder, spellings, task):
            for i in images:
                labels[i] = label
            if not images and self._finder.find_unlisted(edit.path) is None:
                lost[edit.path] = None
        self.labels, self.lost = labels, lost

    def describe_lost(self, name: str) -> list[str]:
        """Describe the rows of the label file that match no picture."""
        return _describe_lost(name, self._table, self.lost)
