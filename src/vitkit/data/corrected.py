"""A table of images as a label file has it: classes of pictures changed, pictures left out, and others taken in.

Only rows that are named change, so that every other picture keeps its class and, trained again with `split_from`, its
split. docs/decisions/0028-label-files.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from vitkit.data.label_file import EXCLUDED, Edit, LabelFile, labels_in, read_labels
from vitkit.data.layout import LayoutName
from vitkit.data.path_finder import PathFinder
from vitkit.data.pictures import UNLABELLED
from vitkit.data.sources import ImageTable, check_classes, number_sets, read_table
from vitkit.data.unlabelled import has_no_folders, read_unlabelled
from vitkit.errors import VitkitError
from vitkit.system.files import without_place
from vitkit.system.progress import Progress
from vitkit.text.cells import JOINT
from vitkit.text.names import bare, look
from vitkit.text.words import listed, plural


def read_corrected(
    data: str | Path, labels: str | Path | None, progress: Progress | None = None, layout: LayoutName = "auto"
) -> ImageTable:
    """As `read_source`, with the labels of a label file; None: with those that the data have.

    Pictures that lie in a folder without class folders, or in a class folder called `unlabelled`, have no class but
    what the label file gives them; the others of them are left out.

    Args:
        data: the folder, file or name.
        labels: the label file.
        progress: told what is downloaded.
        layout: whether the folders of a folder are `classes` or `splits`.

    Raises:
        VitkitError: the data or the label file cannot be understood, or fewer than two classes are left.
    """
    if labels is None:
        table = read_table(data, progress, layout)
    else:
        own = read_labels(labels)
        is_heap = layout == "auto" and has_no_folders(data)
        table = correct(read_unlabelled(data) if is_heap else read_table(data, progress, layout), own)
    check_classes(table)
    return table


def labels_of(table: ImageTable) -> list[tuple[str, str]]:
    """Path and label of each image, as a label file has them."""
    return [(path, _cell(table, i)) for i, path in enumerate(table.paths)]


def correct(table: ImageTable, labels: LabelFile, *, may_add: bool = True) -> ImageTable:
    """The table with what a label file says, and in words what that changed.

    Args:
        table: images, split or not.
        labels: of them.
        may_add: whether a picture that is in the data's folder, and not in the table, comes into it.

    Returns:
        The rows in their order, without those that are left out; then those that were added. Classes are sorted, and
        those without a picture are gone. `corrections` and `unmatched` tell of it.

    Raises:
        VitkitError: a label names several classes where pictures have one, nothing is left, or the label file is a list
            of suspects that nobody has edited.
    """
    before = [_cell(table, i) for i in range(len(table))]
    after, tally, finder = list(before), _Tally(), PathFinder(table.root, table.paths)
    added: dict[str, str] = {}
    for edit, label, found in _settled_edits(table, labels, finder):
        for i in found:
            tally.known.setdefault(i, {edit.previous}).add(label)
            after[i] = label
        if not found:
            path = finder.beside(edit.path) if may_add else None
            if path is not None:
                added[path] = label
            elif may_add or label != EXCLUDED:  # a run knows no picture that was left out of it
                tally.lost[edit.path] = None
    added, homeless = _with_splits(table, {path: own for path, own in added.items() if own != EXCLUDED})
    if labels.has_suspects and not added and after == before:
        raise VitkitError(
            f"{labels.name} lists labels that look wrong, and changes none: write what is right into its column label "
            f"(empty: leave the picture out), or see them first: vitkit doctor {labels.name}"
        )
    changed = _built(table, after, added, is_multi=_has_several(table, labels))
    told, unmatched = _in_words(table, changed, labels, (before, after), added, tally, homeless)
    return replace(changed, corrections=(*table.corrections, *told), unmatched=(*table.unmatched, *unmatched))


@dataclass
class _Tally:
    """What is to be told.

    Attributes:
        lost: paths that no picture has.
        known: of each image that is named, the label that it had before by the first edit, and all that it got.
    """

    lost: dict[str, None] = field(default_factory=dict)
    known: dict[int, set[str]] = field(default_factory=dict)

    def stale(self, before: Sequence[str]) -> list[int]:
        """The images whose label in the data is none that the label file knows of."""
        return [i for i, own in self.known.items() if not own & {"", UNLABELLED, before[i]}]


def _cell(table: ImageTable, index: int) -> str:
    """An image's label as a label file has it: of several classes, or none, `;` alone says none."""
    name = table.name_of(index)
    return name or JOINT if table.is_multi else name


def _has_several(table: ImageTable, labels: LabelFile) -> bool:
    """Whether pictures may have several classes, as the data say, or the labels of data without any."""
    return table.is_multi or (table.classes == (UNLABELLED,) and any(JOINT in own.label for own in labels.edits))


def _settled_edits(
    table: ImageTable, labels: LabelFile, finder: PathFinder
) -> Iterator[tuple[Edit, str, Sequence[int]]]:
    """Each row of a label file with its label as it is to stand in the table, and the images that it names."""
    is_multi, spelt = _has_several(table, labels), {look(name): name for name in table.classes}
    for line, edit in zip(labels.lines, labels.edits, strict=True):
        label = _settled(labels.name, line, edit.label, table, spelt, is_multi=is_multi)
        yield edit, label, finder.find(edit.path)


def _settled(name: str, line: int, label: str, table: ImageTable, spelt: dict[str, str], *, is_multi: bool) -> str:
    """A label as it stands in the table, or is to.

    Accents may be written otherwise than in the table, as folders made on a Mac have them, or a space of no width may
    have come along from a web page: nobody sees two classes.
    """
    if label in table.classes:  # whatever is in its name
        return label
    label = bare(label).strip()
    if label == EXCLUDED or label in table.classes:
        return label
    if is_multi:
        return JOINT.join(sorted({spelt.setdefault(look(own), own) for own in labels_in(label)})) or JOINT
    if JOINT in label:
        raise VitkitError(
            f"{name}, line {line}: {label!r} names several classes, and the pictures of {table.name} have one each; a "
            "CSV with the column labels holds pictures of several"
        )
    return spelt.setdefault(look(label), label)


def _with_splits(table: ImageTable, added: dict[str, str]) -> tuple[dict[str, str], list[str]]:
    """The added pictures that have a place, and the others: of data that come split, what is in no split's folder."""
    if not any(table.splits):
        return added, []
    homes = _split_of_folder(table)
    homeless = [path for path in added if path.split("/")[0] not in homes]
    return {path: label for path, label in added.items() if path not in homeless}, homeless


def _split_of_folder(table: ImageTable) -> dict[str, str]:
    """The split of each folder in the data's folder that holds images of one split alone."""
    found: dict[str, set[str | None]] = {}
    for path, split in zip(table.paths, table.splits, strict=True):
        if "/" in path:
            found.setdefault(path.split("/")[0], set()).add(split)
    return {folder: own for folder, splits in found.items() if len(splits) == 1 and (own := next(iter(splits)))}


def _built(table: ImageTable, after: Sequence[str], added: dict[str, str], *, is_multi: bool) -> ImageTable:
    """The table of the rows that are left, and of those that were added."""
    kept = [i for i, label in enumerate(after) if label not in (EXCLUDED, UNLABELLED)]
    labels = [*(after[i] for i in kept), *added.values()]
    if not labels:
        raise VitkitError(f"{table.name}: the label file leaves out every picture, or gives none of them a class")
    homes = _split_of_folder(table) if any(table.splits) else {}
    own = [labels_in(label) if is_multi else [label] for label in labels]
    classes = tuple(sorted({name for names in own for name in names}))
    number = {name: i for i, name in enumerate(classes)}
    indices = [tuple(sorted(number[name] for name in names)) for names in own]
    sets, numbers = number_sets(indices) if is_multi else ((), tuple(only for (only,) in indices))
    return replace(
        table,
        classes=classes,
        paths=(*(table.paths[i] for i in kept), *added),
        labels=numbers,
        splits=(*(table.splits[i] for i in kept), *(homes.get(path.split("/")[0]) for path in added)),
        sets=sets,
        empty=tuple(name for name in table.empty if name not in classes),
    )


# --- In words --------------------------------------------------------------------------------------------------


def _in_words(
    table: ImageTable,
    changed: ImageTable,
    labels: LabelFile,
    told: tuple[Sequence[str], Sequence[str]],
    added: dict[str, str],
    tally: _Tally,
    homeless: Sequence[str],
) -> tuple[list[str], list[str]]:
    """What a label file changed, and what of it changed nothing."""
    name, (before, after) = without_place(labels.name), told
    notes = [f"{name}: {', '.join(_counts(before, after, added))}", *_of_classes(name, table, changed)]
    if unlabelled := sum(own == UNLABELLED for own in after):
        pictures = plural(unlabelled, "picture without a label yet is", "pictures without a label yet are")
        notes.append(f"{pictures} left out")
    if stale := tally.stale(before):
        paths = listed([table.paths[i] for i in stale])
        pictures = plural(len(stale), "picture is", "pictures are")
        notes.append(f"{pictures} of a class in the data that {name} did not find there; its labels hold: {paths}")
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
        yield f"new by {name}: {'class' if len(more) == 1 else 'classes'} {listed(more, 10)}"
    if gone := sorted(old - new):
        yield f"without a picture by {name}, and so gone: {'class' if len(gone) == 1 else 'classes'} {listed(gone, 10)}"


def _of_lost(name: str, table: ImageTable, tally: _Tally) -> Iterator[str]:
    if tally.lost:
        path, match, change = ("path", "matches", "changes") if len(tally.lost) == 1 else ("paths", "match", "change")
        yield (
            f"{len(tally.lost)} {path} of {name} {match} no picture of {table.name}, and {change} nothing: "
            f"{listed(list(tally.lost))}; paths are as seen from the data's folder, or absolute"
        )


def _of_homeless(name: str, homeless: Sequence[str]) -> Iterator[str]:
    if homeless:
        pictures = plural(len(homeless), "picture", "pictures")
        yield f"{pictures} of {name} left out, in no folder of the data's splits: {listed(homeless)}"


# --- One by one --------------------------------------------------------------------------------------------------


def labels_after(table: ImageTable, labels: LabelFile) -> list[str]:
    """The label of each image of the table as a label file has it; `EXCLUDED` of those that are left out.

    Raises:
        VitkitError: a label names several classes where pictures have one.
    """
    after, finder = [_cell(table, i) for i in range(len(table))], PathFinder(table.root, table.paths)
    for _, label, found in _settled_edits(table, labels, finder):
        for i in found:
            after[i] = label
    return after
