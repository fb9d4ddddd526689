"""Correct the labels of images: apply the label files of people.

A label file changes the classes of images, leaves images out, and adds images. Images that it does not name keep their
class. If a run uses the split of an earlier run (`split_from`), images also keep their split
(docs/decisions/0028-label-files.md).

A label that a person gave on the suggestion of a model is marked as such in the file (`proposed_by`). The table records
the label before (`ImageTable.earlier`), because a test with the new one would favour the model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from vitkit.data.earlier_labels import new_names
from vitkit.data.labels import EXCLUDED, Edit, LabelFile, PathFinder, read_labels
from vitkit.data.layout import LayoutName
from vitkit.data.sources import check_classes, has_no_folders, read_table, read_unlabelled
from vitkit.data.table import MULTI_LABEL, SINGLE_LABEL, UNLABELLED, EarlierLabel, ImageTable, Row, Task, bare, look
from vitkit.errors import VitkitError
from vitkit.system.files import without_place
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
        is_heap = layout == "auto" and has_no_folders(data, follow_links=follow_links)
        read = read_unlabelled if is_heap else partial(read_table, layout=layout)
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
    before = [table.cell_of(i) for i in range(len(table))]
    after, tally, finder = list(before), _EditTally(), PathFinder(table.root, table.paths)
    added: dict[str, str] = {}
    spelt, task = {look(name): name for name in table.classes}, _task_with(table, labels)
    for edit, label, rows in _settled_edits(table, labels, finder, spelt, task):
        for i in rows:
            tally.take(i, edit, after[i], label, table)
            after[i] = label
        if not rows:
            path = finder.beside(edit.path) if may_add else None
            if path is not None:
                added[path] = label
                if edit.proposed_by:
                    tally.proposed_of_added.setdefault(path, edit.proposed_by)
            elif may_add or label != EXCLUDED:  # a run's table does not contain the pictures that it left out
                tally.lost[edit.path] = None
    added, homeless = _with_splits(
        table, {path: split_name for path, split_name in added.items() if split_name != EXCLUDED}
    )
    if labels.has_suspects and not added and after == before:
        raise VitkitError(
            f"{labels.name} lists suspected label errors, but changes none: write the right labels into the "
            f"column label (an empty one leaves the picture out), or inspect them first: vitkit doctor {labels.name}"
        )
    changed = _built(table, after, added, task)
    changed = replace(changed, left_out=(*table.left_out, *tally.left_out(table, after)))
    changed = replace(changed, earlier=_earlier(table, changed, (before, after), added, tally))
    notes, unmatched = _in_words(table, changed, labels, (before, after), added, tally, homeless)
    return replace(changed, corrections=(*table.corrections, *notes), unmatched=(*table.unmatched, *unmatched))


@dataclass
class _EditTally:
    """The effects of the rows of a label file, collected while the rows are applied.

    Attributes:
        lost: the paths in the label file that match no picture, as the keys of a dictionary.
        known: for each image that the file names, the previous label in its first row, and the labels in all of its
            rows.
        proposed: for each image whose label a model proposed, the label before the first proposal, and the run whose
            model proposed it.
        proposed_of_added: for each added picture whose label a model proposed, the run of this model, by path.
        last: for each image, its last label before it was left out.
    """

    lost: dict[str, None] = field(default_factory=dict)
    known: dict[int, set[str]] = field(default_factory=dict)
    proposed: dict[int, tuple[str, str]] = field(default_factory=dict)
    proposed_of_added: dict[str, str] = field(default_factory=dict)
    last: dict[int, str] = field(default_factory=dict)

    def take(self, image: int, edit: Edit, now: str, label: str, table: ImageTable) -> None:
        """Record an edit that changes the label of an image from `now` to `label`.

        `label` is the label in `edit`, in the spelling of the table.
        """
        self.known.setdefault(image, {edit.previous}).add(label)
        if edit.proposed_by:
            before = edit.previous if edit.previous in table.classes else now
            self.proposed.setdefault(image, (before, edit.proposed_by))
        if now != EXCLUDED:
            self.last[image] = now

    def stale(self, before: Sequence[str]) -> list[int]:
        """Return the images whose label in the data occurs nowhere in their rows of the label file.

        The label in the data was probably changed after these rows were written.
        """
        return [i for i, names in self.known.items() if not names & {"", UNLABELLED, before[i]}]

    def left_out(self, table: ImageTable, after: Sequence[str]) -> list[Row]:
        """Return the rows of the images that the label file leaves out, with their last labels."""
        return [(table.paths[i], label, table.splits[i]) for i, label in self.last.items() if after[i] == EXCLUDED]


def _earlier(
    table: ImageTable,
    changed: ImageTable,
    texts: tuple[Sequence[str], Sequence[str]],
    added: dict[str, str],
    tally: _EditTally,
) -> tuple[EarlierLabel, ...]:
    """Return the label before the first proposal of a model, for each image that has another label now or is left out.

    Proposals in earlier label files are included. Classes that were renamed since have their current names.
    """
    before, after = texts
    label_of = dict(zip(table.paths, after, strict=True)) | added
    names = new_names(
        ((old, new) for i, (old, new) in enumerate(zip(before, after, strict=True)) if i not in tally.proposed), changed
    )
    earlier = {
        **{path: EarlierLabel(path, UNLABELLED, by) for path, by in tally.proposed_of_added.items()},
        **{
            table.paths[i]: EarlierLabel(table.paths[i], names.get(label, label), by)
            for i, (label, by) in tally.proposed.items()
        },
        **{item.path: item for item in table.earlier},
    }
    return tuple(item for path, item in earlier.items() if label_of.get(path) != item.before)


def _task_with(table: ImageTable, labels: LabelFile) -> Task:
    """Return the table's task. If the table has no classes yet, return the task that the label file implies."""
    if table.classes == (UNLABELLED,) and any(SINGLE_LABEL.refuses(edit.label) for edit in labels.edits):
        return MULTI_LABEL
    return table.task


def _settled_edits(
    table: ImageTable, labels: LabelFile, finder: PathFinder, spelt: dict[str, str], task: Task
) -> Iterator[tuple[Edit, str, Sequence[int]]]:
    """Yield each row of a label file, its label in the spelling of the table, and the images of its path."""
    for line, edit in zip(labels.lines, labels.edits, strict=True):
        label = _settled(labels.name, line, edit.label, table, spelt, task)
        yield edit, label, finder.find(edit.path)


def _settled(name: str, line: int, label: str, table: ImageTable, spelt: dict[str, str], task: Task) -> str:
    """Return a label in the spelling of the table.

    Class names that look the same denote the same class. They may differ because accents are encoded differently, as in
    folder names on macOS, or because text copied from a web page contains zero-width spaces.
    """
    if label in table.classes:  # even if the name contains a separator
        return label
    label = bare(label).strip()
    if label == EXCLUDED or label in table.classes:
        return label
    if task.refuses(label):
        raise VitkitError(
            f"{name}, line {line}: {label!r} has several classes, but the pictures of {table.name} have one each; to "
            "allow several, list the pictures in a CSV whose label column is named 'labels'"
        )
    return task.label_of(spelt.setdefault(look(part), part) for part in task.names_in(label))


def _with_splits(table: ImageTable, added: dict[str, str]) -> tuple[dict[str, str], list[str]]:
    """Return the labels, by path, of the added pictures whose split is known, and the paths of the other pictures.

    If the table has no splits, the labels of all pictures are returned.
    """
    if not any(table.splits):
        return added, []
    homes = _split_of_folder(table)
    homeless = [path for path in added if path.split("/")[0] not in homes]
    return {path: label for path, label in added.items() if path not in homeless}, homeless


def _split_of_folder(table: ImageTable) -> dict[str, str]:
    """Return the split of each top-level folder whose images all belong to one split."""
    splits_of: dict[str, set[str | None]] = {}
    for path, split in zip(table.paths, table.splits, strict=True):
        if "/" in path:
            splits_of.setdefault(path.split("/")[0], set()).add(split)
    return {
        folder: split_name
        for folder, splits in splits_of.items()
        if len(splits) == 1 and (split_name := next(iter(splits)))
    }


def _built(table: ImageTable, after: Sequence[str], added: dict[str, str], task: Task) -> ImageTable:
    """Build the corrected table from the remaining and the added rows."""
    kept = [i for i, label in enumerate(after) if label not in (EXCLUDED, UNLABELLED)]
    labels = [*(after[i] for i in kept), *added.values()]
    if not labels:
        raise VitkitError(f"{table.name}: the label file leaves out every picture, or gives none of them a class")
    homes = _split_of_folder(table) if any(table.splits) else {}
    names_of_labels = [task.names_in(label) for label in labels]
    classes = tuple(sorted({name for names in names_of_labels for name in names}))
    number = {name: i for i, name in enumerate(classes)}
    indices = [tuple(sorted(number[name] for name in names)) for names in names_of_labels]
    sets, numbers = task.encode(indices)
    return replace(
        table,
        classes=classes,
        paths=(*(table.paths[i] for i in kept), *added),
        labels=numbers,
        splits=(*(table.splits[i] for i in kept), *(homes.get(path.split("/")[0]) for path in added)),
        sets=sets,
        empty=tuple(name for name in table.empty if name not in classes),
    )


# --- Corrections in words ------------------------------------------------------------------------------------


def _in_words(
    table: ImageTable,
    changed: ImageTable,
    labels: LabelFile,
    texts: tuple[Sequence[str], Sequence[str]],
    added: dict[str, str],
    tally: _EditTally,
    homeless: Sequence[str],
) -> tuple[list[str], list[str]]:
    """Return two lists of lines: descriptions of the changes, and of the rows that had no effect."""
    name, (before, after) = without_place(labels.name), texts
    proposed = len({item.path for item in changed.earlier} - {item.path for item in table.earlier})
    by = f" ({proposed} proposed by a model)" if proposed else ""
    notes = [f"{name}: {', '.join(_counts(before, after, added))}{by}", *_of_classes(name, table, changed)]
    if unlabelled := sum(proposal == UNLABELLED for proposal in after):
        pictures = plural(unlabelled, "picture without a label yet is", "pictures without a label yet are")
        notes.append(f"{pictures} left out")
    if stale := tally.stale(before):
        paths = listed([table.paths[i] for i in stale])
        pictures = plural(len(stale), "picture is", "pictures are")
        notes.append(
            f"{pictures} in another class of the data than when {name} was written; "
            f"the labels of {name} are used: {paths}"
        )
    return notes, [*_of_lost(name, table, tally), *_of_homeless(name, homeless)]


def _counts(before: Sequence[str], after: Sequence[str], added: dict[str, str]) -> Iterator[str]:
    pairs = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
    ways = Counter(
        "left out" if new == EXCLUDED else "labelled" if old == UNLABELLED else "with another label"
        for old, new in pairs
    )
    if added:
        ways["added"] = len(added)
    if not ways:
        yield "changes no label"
    for way, count in ways.items():
        yield f"{plural(count, 'picture', 'pictures')} {way}"


def _of_classes(name: str, table: ImageTable, changed: ImageTable) -> Iterator[str]:
    old, new = set(table.classes) - {UNLABELLED}, set(changed.classes)
    if more := sorted(new - old):
        yield f"{name} adds the {'class' if len(more) == 1 else 'classes'} {listed(more, 10)}"
    if gone := sorted(old - new):
        yield f"{name} leaves no picture in the {'class' if len(gone) == 1 else 'classes'} {listed(gone, 10)}"


def _of_lost(name: str, table: ImageTable, tally: _EditTally) -> Iterator[str]:
    if tally.lost:
        path, match, change = ("path", "matches", "changes") if len(tally.lost) == 1 else ("paths", "match", "change")
        yield (
            f"{len(tally.lost)} {path} of {name} {match} no picture of {table.name}, and {change} nothing: "
            f"{listed(list(tally.lost))}; paths must be relative to the data's folder, or absolute"
        )


def _of_homeless(name: str, homeless: Sequence[str]) -> Iterator[str]:
    if homeless:
        pictures = plural(len(homeless), "picture", "pictures")
        outside = f"because {'it lies' if len(homeless) == 1 else 'they lie'} outside the folders of the data's splits"
        yield f"{pictures} of {name} left out, {outside}: {listed(homeless)}"


# --- Corrections one by one ----------------------------------------------------------------------------------


class Followed:
    """The current labels of a table's images, updated while rows are added to a label file.

    Attributes:
        labels: the current label of each image, written as in a label file; `EXCLUDED` if the image is left out.
        lost: the paths in the label file that match neither an image of the table nor a file in the data's folder, as
            the keys of a dictionary.
    """

    def __init__(self, table: ImageTable) -> None:
        self._table, self._finder = table, PathFinder(table.root, table.paths)
        self._begin()

    def _begin(self) -> None:
        self._edits: tuple[Edit, ...] = ()
        self._task = self._table.task
        self._spelt = {look(name): name for name in self._table.classes}
        self.labels = [self._table.cell_of(i) for i in range(len(self._table))]
        self.lost: dict[str, None] = {}

    def take(self, file: LabelFile) -> None:
        """Apply those rows of a label file that were added since the last call.

        Raises:
            VitkitError: a label names several classes in a single-label table.
        """
        known = len(self._edits)
        task = _task_with(self._table, replace(file, edits=file.edits[known:]))
        task = self._task if task is self._table.task else task
        if task is not self._task or file.edits[:known] != self._edits:
            self._begin()
            known, self._task = 0, task
        added = replace(file, edits=file.edits[known:], lines=file.lines[known:])
        self._edits = ()  # after an error in the loop, the next call starts again from the first row
        for edit, label, rows in _settled_edits(self._table, added, self._finder, self._spelt, task):
            for i in rows:
                self.labels[i] = label
            if not rows and self._finder.beside(edit.path) is None:
                self.lost[edit.path] = None
        self._edits = file.edits

    def lines(self, name: str) -> list[str]:
        """Describe the rows of the label file that match no picture."""
        return list(_of_lost(name, self._table, _EditTally(lost=self.lost)))
