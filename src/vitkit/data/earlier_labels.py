"""Compare the labels of images with those that earlier runs had, for figures that do not flatter.

Whoever has seen a model's predictions and then changes labels, or removes images, moves the test towards the model. The
figure of a run therefore uses the labels that its images had in the runs that its split or its weights come from. A
test image of such a run that is no longer there counts as that run predicted it. Images are recognised by their
content (docs/decisions/0028-label-files.md).

A run stores the result (earlier_labels.json), so the labels of the first run reach all later ones.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from vitkit.data.split_file import read_contents, split_from_file
from vitkit.data.table import UNLABELLED, EarlierLabel, ImageTable, Task
from vitkit.errors import VitkitError
from vitkit.system.files import from_json, read_text
from vitkit.system.run_files import EARLIER_LABELS, EVALUATION, PREDICTIONS, PROPOSALS, SPLIT
from vitkit.text.cells import restored


class MissingTest(NamedTuple):
    """A test image of an earlier run that is no longer among the images."""

    digest: str  # the first bytes of the file's SHA-256 in hexadecimal
    label: str  # the label that the run was tested with
    predicted: str  # what the run predicted
    run: str  # the name of the run


@dataclass(frozen=True)
class LabelsBefore:
    """The differences between the labels of some images and those of earlier runs."""

    changed: tuple[EarlierLabel, ...] = ()  # images with another label now; `UNLABELLED` if no person gave the earlier
    missing: tuple[MissingTest, ...] = ()  # test images of earlier runs that are no longer there

    @property
    def untested(self) -> frozenset[str]:
        """Return the paths of the images that no person has labelled. They can be trained on, but test nothing."""
        return frozenset(item.path for item in self.changed if item.before == UNLABELLED)

    def to_dict(self) -> dict[str, Any]:
        """Return the content of earlier_labels.json."""
        return {
            "changed": [item._asdict() for item in self.changed],
            "missing": [item._asdict() for item in self.missing],
        }


UNCHANGED = LabelsBefore()


def runs_of(sources: Iterable[str | Path]) -> list[Path]:
    """Return the run folders among sources of weights or of splits; a source may also be a file in a run folder."""
    places = [place for place in map(Path, sources) if place.exists()]
    folders = [place if place.is_dir() else place.parent for place in places]
    return [folder for folder in dict.fromkeys(folders) if (folder / SPLIT).is_file()]


def read_labels_before(run: Path) -> LabelsBefore:
    """Read the earlier labels that a run stored; they are empty if there is no such file.

    Raises:
        VitkitError: the file is damaged, or an earlier version of vitkit wrote it in another form (proposals.json).
    """
    file = run / EARLIER_LABELS
    if (run / PROPOSALS).is_file():
        raise VitkitError(
            "data.run-outdated",
            f"{run / PROPOSALS} is of an earlier version of vitkit, and not understood: train again",
        )
    if not file.is_file():
        return UNCHANGED
    try:
        stored = from_json(read_text(file))
        found = LabelsBefore(
            tuple(EarlierLabel(**row) for row in stored["changed"]),
            tuple(MissingTest(**row) for row in stored["missing"]),
        )
        if not all(isinstance(text, str) for row in (*found.changed, *found.missing) for text in row):
            raise TypeError("a row contains something other than text")
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise VitkitError("data.run-damaged", f"{file} is damaged: {error}; restore it, or train again") from error
    return found


def compare_with_runs(
    table: ImageTable, digests: Mapping[str, str], runs: Iterable[Path], tested: Collection[str] = ()
) -> LabelsBefore:
    """Compare the labels of images with those that they had in earlier runs.

    Labels that the label file marks as proposed by a model are compared with those before the proposal, if no run knows
    the image.

    Args:
        table: the images with their current labels.
        digests: the digest of each image's file, by path. An image without a digest counts as missing.
        runs: the folders of the runs; the first one that knows an image decides.
        tested: the paths of the images that are tested now. The missing test images of a run count if at least half of
            these images, apart from those that the run learned from, were test images of the run. Otherwise, the test
            is of other images.
    """
    now = {path: table.cell_of(i) for i, path in enumerate(table.paths)}
    marked = {item.path: item for item in table.earlier}
    known, missing = dict[str, EarlierLabel](), dict[str, MissingTest]()
    for run in runs:
        images, contents, before = split_from_file(run / SPLIT), read_contents(run / SPLIT), read_labels_before(run)
        labels: dict[str, set[str]] = {}  # by the digest of the file, whose copies may have several
        for i, path in enumerate(images.paths):
            if path in contents:
                labels.setdefault(contents[path], set()).add(images.cell_of(i))
        then = {
            digest: EarlierLabel("", label, run.name, digest)
            for digest, (label, *others) in labels.items()
            if not others
        }
        then |= {item.digest: item for item in before.changed if item.digest and item.before != UNLABELLED}
        compared = [(path, then[digest]) for path, digest in digests.items() if path in now and digest in then]
        stored = {item.digest: item.before for item in before.changed}
        plain = [(path, item) for path, item in compared if path not in marked and item.digest not in stored]
        names = new_names(((item.before, now[path]) for path, item in plain), table)
        same = sum(names.get(item.before, item.before) == now[path] for path, item in compared)
        if not set(images.classes) & set(table.classes) and 4 * same < 3 * len(compared):
            continue  # the classes serve another purpose, such as colours in place of species
        for path, item in compared:
            old = names.get(item.before, item.before)
            label = UNLABELLED if stored.get(item.digest) == UNLABELLED and old == now[path] else old
            known.setdefault(path, item._replace(path=path, before=label))
        tests, there = _tests_of_run(run, contents, before, table.task), set(digests.values())
        learned = set(contents.values()) - tests.keys()  # these do not count in a test
        there_tested = [digests[path] for path in tested if path in digests and digests[path] not in learned]
        if there_tested and 2 * sum(digest in tests for digest in there_tested) >= len(there_tested):
            for digest, test in tests.items():
                label = names.get(test.label, test.label)
                if digest not in there:
                    missing.setdefault(digest, test._replace(label=label))
    marked = {path: item._replace(digest=digests.get(path, "")) for path, item in marked.items()}
    earlier = [found for path in now if (found := known.get(path, marked.get(path)))]
    return LabelsBefore(tuple(item for item in earlier if item.before != now[item.path]), tuple(missing.values()))


def new_names(pairs: Iterable[tuple[str, str]], table: ImageTable) -> dict[str, str]:
    """Return the current label for each earlier label whose class no longer exists: what most of its images are now.

    `pairs` are the earlier and the current labels of images, and `table` has the current classes.
    """
    votes: dict[str, Counter[str]] = {}
    for (old, new), count in Counter(pairs).items():
        is_known = set(table.task.names_in(old)) <= set(table.classes)
        if old and new and UNLABELLED not in (old, new) and not is_known:
            votes.setdefault(old, Counter())[new] += count
    return {old: counts.most_common(1)[0][0] for old, counts in votes.items()}


def labels_before_run(run: Path, table: ImageTable) -> LabelsBefore:
    """Return the earlier labels that a run stored, with the current paths of its images (`images_of_run`)."""
    found = compare_with_runs(table, digests_of_run(run, table), [run])
    return replace(found, missing=read_labels_before(run).missing)


def digests_of_run(run: Path, table: ImageTable) -> dict[str, str]:
    """Return the digests of a run's images by their current paths, which are those in `table` (`images_of_run`)."""
    contents = read_contents(run / SPLIT)
    known = zip(split_from_file(run / SPLIT).paths, table.paths, strict=True)
    return {new: contents[old] for old, new in known if old in contents}


def _tests_of_run(run: Path, contents: Mapping[str, str], stored: LabelsBefore, task: Task) -> dict[str, MissingTest]:
    """Return the test images of a run by the digests of the files, without those that its weights had seen."""
    tests = {item.digest: item for item in stored.missing}
    if not (run / PREDICTIONS).is_file():
        return tests
    try:
        numbers = from_json(read_text(run / EVALUATION)) if (run / EVALUATION).is_file() else {}
        seen = set((numbers.get("seen") or {"paths": ()})["paths"])
        for row in csv.DictReader(io.StringIO(read_text(run / PREDICTIONS))):
            path, label, predicted = (restored(row[name]) for name in ("path", "label", "predicted"))
            if path in contents and path not in seen:
                item = MissingTest(contents[path], label or task.no_class, predicted or task.no_class, run.name)
                tests[contents[path]] = item
    except (ValueError, TypeError, KeyError, AttributeError, csv.Error) as error:
        raise VitkitError(
            "data.run-damaged", f"the predictions of {run} are damaged ({error}): restore the run, or evaluate it"
        ) from error
    return tests
