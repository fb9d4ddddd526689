"""Keep track of labels that a model proposed, and of the label that each image had before the first proposal.

If a label was changed on a model's suggestion, it agrees with that model. Testing on such labels therefore measures how
well models agree with one another, rather than how good they are. For this reason, a run stores the earlier labels
together with the digests of the images (proposals.json). Later runs can then recognise the images, even under other
names, in other folders, or without the label file (docs/decisions/0028-label-files.md).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from vitkit.data.labels import EXCLUDED, Proposal, read_suspects
from vitkit.data.split_file import by_content, digest_of, read_contents, split_from_file
from vitkit.data.table import ImageTable
from vitkit.data.task import Task
from vitkit.errors import VitkitError
from vitkit.system.files import from_json, read_text
from vitkit.system.run_files import LABEL_ERRORS, PROPOSALS, SPLIT, folds_in

_MOST_RUNS = 10  # the newest runs of a folder are searched
_SAME = 0.75  # two runs have the same purpose if at least this share of their labels is equal


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


# --- What runs tell ------------------------------------------------------------------------------------------


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
        """Count the images of a split whose label the run suspected to be wrong and which are not among `digests`.

        Return 0 if fewer than half of the run's images are among `digests`, because the digests are then those of other
        data.
        """
        there = set(digests)
        if 2 * len(there & self.labels.keys()) < len(self.labels):
            return 0
        return sum(self.splits[digest] == split and digest not in there for digest in self.suggested)


def read_earlier(run: Path, *, is_ancestor: bool = False) -> Earlier | None:
    """Read the labels of a run, as far as later runs need them.

    Return None if the run is damaged. Unless it is an ancestor of the new run, also return None if it has neither
    suspected label errors nor proposals, because the new run then does not need it.
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


# --- What a run keeps ----------------------------------------------------------------------------------------


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
        raise VitkitError(f"{run / PROPOSALS} is damaged: {error}") from error
    return proposals


def proposals_of_run(run: Path, table: ImageTable) -> tuple[Proposal, ...]:
    """Read the proposals of a run, and replace their paths with the images' current paths.

    `table` has the current paths (`images_of_run`). If an image was left out, so that it is not in the table, and is no
    longer at its old path, it is located by its content.
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


# --- What is found -------------------------------------------------------------------------------------------


def find_proposals(table: ImageTable, digests: Mapping[str, str], earlier: Sequence[Earlier]) -> tuple[Proposal, ...]:
    """Find the images whose current label follows a model's proposal, including images that were left out.

    The label of an image counts as proposed in three cases:

    - The label file marks it as proposed.
    - An earlier run suggested this label in place of the one that the image had then. This also holds if a person
      entered it.
    - An earlier run stored it as a proposal.

    An image that was left out counts if an earlier run suspected its label, unless the table contains the same file.

    Args:
        table: the images, after the label file was applied (`corrections.correct`).
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
    """Yield pairs of the label before a proposal and the run that proposed; the earliest known proposal comes first."""
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

    This is assumed if more than a quarter of the labels differ, or if no label can be compared and the run is not an
    ancestor.
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
