"""Correct the labels of images: apply the label files of people, and keep track of the labels that models proposed.

A label file changes the classes of images, leaves images out, and adds images. Images that it does not name keep their
class. If a run uses the split of an earlier run (`split_from`), images also keep their split
(docs/decisions/0028-label-files.md).

A label that was changed on a model's suggestion agrees with that model, so testing on such labels measures how well
models agree with one another, rather than how good they are. For this reason, a run stores the label that each image
had before the first proposal, together with the digests of the images (proposals.json). Later runs can then recognise
the images, even under other names, in other folders, or without the label file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from vitkit.data.labels import EXCLUDED, Edit, LabelFile, PathFinder, read_labels, read_suspects
from vitkit.data.layout import LayoutName
from vitkit.data.sources import check_classes, has_no_folders, read_table, read_unlabelled
from vitkit.data.split_file import by_content, digest_of, read_contents, split_from_file
from vitkit.data.table import MULTI_LABEL, SINGLE_LABEL, UNLABELLED, ImageTable, Proposal, Row, Task, bare, look
from vitkit.errors import VitkitError
from vitkit.system.files import from_json, read_text, without_place
from vitkit.system.run_files import LABEL_ERRORS, PROPOSALS, SPLIT, folds_in
from vitkit.text.cells import listed, plural

_MOST_RUNS = 10  # the newest runs of a folder are searched
_SAME = 0.75  # two runs have the same purpose if at least this share of their labels is equal


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
    changed = replace(changed, proposals=_proposals(table, changed, (before, after), added, tally))
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


def _proposals(
    table: ImageTable,
    changed: ImageTable,
    texts: tuple[Sequence[str], Sequence[str]],
    added: dict[str, str],
    tally: _EditTally,
) -> tuple[Proposal, ...]:
    """Return those proposals of models that took effect.

    A proposal took effect if the image no longer has the label that it had before the proposal. Proposals in earlier
    label files are included. If a class was renamed, earlier labels are translated to its new name.
    """
    older = {earlier.path: earlier for earlier in table.proposals}
    before, after = texts
    rename = Renaming.of(
        ((old, new) for i, (old, new) in enumerate(zip(before, after, strict=True)) if i not in tally.proposed),
        changed,
    )
    for i, (label, by) in tally.proposed.items():
        path = table.paths[i]
        if path not in older and (earlier := rename(label)) != after[i]:
            older[path] = Proposal(path, earlier, by)
    for path, by in tally.proposed_of_added.items():
        if path in added:
            older.setdefault(path, Proposal(path, UNLABELLED, by))
    place = {path: i for i, path in enumerate(table.paths)}
    proposals = []
    for path, proposal in older.items():
        if path not in place:
            proposals.append(proposal)
        elif (label := after[place[path]]) != proposal.before:
            proposals.append(proposal._replace(split=table.splits[place[path]] if label == EXCLUDED else None))
    return tuple(proposals)


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
    proposed = len({proposal.path for proposal in changed.proposals} - {proposal.path for proposal in table.proposals})
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


# --- Proposals: renamed classes ------------------------------------------------------------------------------


class Renaming:
    """A mapping from old class names to current ones, inferred from images whose labels no model has changed.

    Args:
        names: the current name of each old class whose name no longer exists.
        task: the task of the table, which parses labels into class names.
    """

    def __init__(self, names: Mapping[str, str], task: Task) -> None:
        self._names, self._task = names, task

    @classmethod
    def of(cls, pairs: Iterable[tuple[str, str]], table: ImageTable) -> Renaming:
        """Infer the mapping. The pairs are the old and the new label of each image whose label no model has changed."""
        votes: dict[str, Counter[str]] = {}
        kept = set(table.classes)
        for (old, new), count in Counter(pairs).items():
            before, after = (set(table.task.names_in(label)) - {EXCLUDED} for label in (old, new))
            for name in before - kept:
                votes.setdefault(name, Counter()).update(dict.fromkeys(sorted(after - before), count))
        names = {old: counts.most_common(1)[0][0] for old, counts in votes.items() if counts}
        return cls(names, table.task)

    def __call__(self, label: str) -> str:
        """Replace the renamed classes in a label. Other classes stay unchanged."""
        if not self._names:
            return label
        return self._task.label_of(self._names.get(name, name) for name in self._task.names_in(label))


# --- Proposals: what runs tell -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Earlier:
    """The labels of an earlier run. The keys of all mappings are the digests of the images' files, in hexadecimal.

    Attributes:
        folder: the folder of the run.
        labels: the labels of its images. A file that occurred several times may have several labels.
        splits: the splits of its images.
        suggested: for each suspected label error, the label and the suggested class.
        proposals: for each image whose label a model proposed, the proposal, which contains the label before it.
        is_ancestor: whether the new run starts from this run, or uses its split.
    """

    folder: Path
    labels: Mapping[str, frozenset[str]]
    splits: Mapping[str, str | None]
    suggested: Mapping[str, tuple[str, str]]
    proposals: Mapping[str, Proposal]
    is_ancestor: bool = False

    @property
    def name(self) -> str:
        """Return the name of the run."""
        return self.folder.name

    def gone(self, digests: Iterable[str], split: str) -> int:
        """Count the suspected label errors in a split of the run whose images are not among `digests`.

        Return 0 if fewer than half of the run's images are among `digests`, because the digests are then those of other
        data.
        """
        there = set(digests)
        if 2 * len(there & self.labels.keys()) < len(self.labels):
            return 0
        return sum(self.splits[digest] == split and digest not in there for digest in self.suggested)


def read_earlier(run: Path, *, is_ancestor: bool = False) -> Earlier | None:
    """Read the labels of a run, as far as a new run needs them.

    Return None if the run is damaged, or if it has neither suspected label errors nor proposals. An ancestor of the new
    run (`is_ancestor`) is read even without these.
    """
    try:
        suspects = read_suspects(run / LABEL_ERRORS) if (run / LABEL_ERRORS).is_file() else []
        proposals = read_proposals(run)
        if not (suspects or proposals or is_ancestor):
            return None
        table, contents = split_from_file(run / SPLIT), read_contents(run / SPLIT)
    except (VitkitError, OSError):
        return None
    labels: dict[str, frozenset[str]] = {}
    splits, label_of = {}, {}
    for i, path in enumerate(table.paths):
        if (digest := contents.get(path)) is not None:
            label_of[path] = table.cell_of(i)  # the run's label, because people may have edited the list
            labels[digest] = labels.get(digest, frozenset()) | {label_of[path]}
            splits[digest] = table.splits[i]
    suggested = {contents[row.path]: (label_of[row.path], row.suggested) for row in suspects if row.path in label_of}
    known = {row.digest: row for row in proposals if row.digest}
    return Earlier(run, labels, splits, suggested, known, is_ancestor)


def earlier_runs(ancestors: Iterable[str | Path], places: Iterable[Path]) -> list[Earlier]:
    """Read runs that may have proposed labels: first a run's ancestors, then the newest runs in each of `places`."""
    runs: dict[Path, Earlier] = {}
    for run in ancestors:
        if Path(run).is_dir():
            for folder in (Path(run), *folds_in(Path(run))):
                if (earlier := read_earlier(folder, is_ancestor=True)) is not None:
                    runs[folder.resolve()] = earlier
    for place in places:
        lists = [file.parent for form in (LABEL_ERRORS, PROPOSALS) for file in place.glob(f"*/{form}")]
        lists += [file.parent for file in place.glob(f"*/fold-*/{LABEL_ERRORS}")]
        for run in sorted(dict.fromkeys(lists), key=_age)[:_MOST_RUNS]:
            if run.resolve() not in runs and (earlier := read_earlier(run)) is not None:
                runs[run.resolve()] = earlier
    return list(runs.values())


def _age(run: Path) -> float:
    with suppress(OSError):
        return -(run / SPLIT).stat().st_mtime
    return 0.0


# --- Proposals: what a run keeps -----------------------------------------------------------------------------


def read_proposals(run: Path) -> tuple[Proposal, ...]:
    """Read the proposals that a run stored; return an empty tuple if there is no such file.

    Raises:
        VitkitError: the file is damaged.
        OSError: the file cannot be read.
    """
    try:
        stored = from_json(read_text(run / PROPOSALS))
        proposals = tuple(Proposal(**row) for row in stored)
        texts = [
            text
            for proposal in proposals
            for text in (proposal.path, proposal.before, proposal.by, proposal.digest, proposal.split or "")
        ]
        if not all(isinstance(text, str) for text in texts):
            raise TypeError("a row contains something other than text")
    except FileNotFoundError:
        return ()
    except (ValueError, TypeError) as error:
        raise VitkitError(f"{run / PROPOSALS} is damaged: {error}; restore it, or train again") from error
    return proposals


def proposals_of_run(run: Path, table: ImageTable) -> tuple[Proposal, ...]:
    """Read the proposals of a run, and replace their paths with the images' current paths.

    `table` has the current paths (`images_of_run`). An image that was left out is not in the table. It keeps its path,
    or is located by its content if it is no longer at this path.
    """
    stored = read_proposals(run)
    if not stored:
        return ()
    place = dict(zip(split_from_file(run / SPLIT).paths, table.paths, strict=True))
    lost = {
        proposal.digest
        for proposal in stored
        if proposal.path not in place and digest_of(table.at(proposal.path)) != proposal.digest
    }
    paths_of = by_content(table) if lost else {}
    return tuple(
        proposal._replace(
            path=paths_of.get(proposal.digest, proposal.path)
            if proposal.digest in lost
            else place.get(proposal.path, proposal.path)
        )
        for proposal in stored
    )


def digests_of_run(run: Path, table: ImageTable) -> dict[str, str]:
    """Return the digests of a run's images by their current paths, which are those in `table` (`images_of_run`)."""
    contents = read_contents(run / SPLIT)
    known = zip(split_from_file(run / SPLIT).paths, table.paths, strict=True)
    return {new: contents[old] for old, new in known if old in contents}


# --- Proposals: what is found --------------------------------------------------------------------------------


def find_proposals(table: ImageTable, digests: Mapping[str, str], earlier: Sequence[Earlier]) -> tuple[Proposal, ...]:
    """Find the images whose current label follows a model's proposal, including images that were left out.

    The label of an image counts as proposed in three cases:

    - The label file marks the label as proposed.
    - An earlier run, in which the image had another label, suggested the current label. It does not matter whether a
      person entered the current label later.
    - An earlier run stored the label as a proposal.

    An image that was left out counts if an earlier run suspected its label, unless the table contains the same file.

    Args:
        table: the images, after the label file was applied (`correct`).
        digests: the digest of each file by its path, including images that are left out.
        earlier: the runs that may have proposed labels, the ancestors of the new run first.
    """
    now = dict(zip(table.paths, map(table.cell_of, range(len(table))), strict=True))
    now |= {path: EXCLUDED for path, _, _ in table.left_out}
    marked = {item.path: item for item in table.proposals}
    runs = [(item, rename) for item in earlier if (rename := _renaming(item, table, digests, now)) is not None]
    split_of = {path: split for path, _, split in table.left_out}
    there = {digests.get(path) for path in table.paths} - {None}
    proposals = []
    for path in dict.fromkeys((*now, *marked)):
        label, digest, mark = now.get(path), digests.get(path, ""), marked.get(path)
        if label == EXCLUDED and digest in there:
            continue
        before, by = next(_notes_about(label, digest, mark, runs), (label, ""))
        if before is not None and before != label:
            split = split_of.get(path) if label == EXCLUDED else mark.split if mark is not None else None
            proposals.append(Proposal(path, before, by, split, digest))
    return tuple(proposals)


def _notes_about(
    label: str | None, digest: str, mark: Proposal | None, runs: Sequence[tuple[Earlier, Renaming]]
) -> Iterator[tuple[str, str]]:
    """Yield the known proposals for an image with this label and digest, the earliest first.

    Each is a pair: the label before the proposal, and the run that made the proposal. `mark` is the proposal that the
    table contains for the image, or None.
    """
    for entry, rename in runs:
        if entry.is_ancestor and digest in entry.proposals:
            yield rename(entry.proposals[digest].before), entry.proposals[digest].by
    if mark is not None:
        yield mark.before, mark.by
    for entry, rename in runs:
        if digest in entry.proposals and label in set(map(rename, entry.labels.get(digest, {EXCLUDED}))):
            yield rename(entry.proposals[digest].before), entry.proposals[digest].by
    for entry, rename in runs:
        if digest in entry.suggested and label not in set(map(rename, entry.labels[digest])):
            before, suggested = map(rename, entry.suggested[digest])
            if label in (EXCLUDED, suggested):
                yield before, entry.name


def _renaming(run: Earlier, table: ImageTable, digests: Mapping[str, str], now: Mapping[str, str]) -> Renaming | None:
    """Infer how classes were renamed since a run; return None if the run's labels served another purpose.

    Another purpose is assumed if more than a quarter of the labels differ, or if no label can be compared and the run
    is not an ancestor.
    """
    pairs = [
        (now[path] if now[path] in run.labels[digest] else min(run.labels[digest]), now[path])
        for path, digest in digests.items()
        if path in now and now[path] != EXCLUDED and digest in run.labels
        if digest not in run.suggested and digest not in run.proposals
    ]
    rename = Renaming.of(pairs, table)
    same = sum(rename(old) == new for old, new in pairs)
    return rename if same >= _SAME * len(pairs) and (pairs or run.is_ancestor) else None
