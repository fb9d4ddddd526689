"""Compare the labels of images with those in earlier runs, so that changed labels cannot make test results too good.

If somebody changes labels or removes images after seeing a model's predictions, the test set moves towards the model.
Test results therefore use the labels that the images had in the runs that the split or the weights come from. A test
image of such a run that has been removed counts with the prediction of that run. Images are recognised by their content
(docs/decisions/0028-label-files.md).

A run stores the changes (earlier_labels.json), so the labels of the first run reach all later ones.
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
from vitkit.system.run_files import EARLIER_LABELS, EVALUATION, PREDICTIONS, SPLIT
from vitkit.text.cells import restored


class MissingTestImage(NamedTuple):
    """A test image of an earlier run that is not in the data any more."""

    digest: str  # the first bytes of the file's SHA-256 in hexadecimal
    label: str  # the label in the test of this run
    predicted: str  # the prediction of this run
    run: str  # the name of the run


@dataclass(frozen=True)
class ChangesSinceRuns:
    """The differences between the labels of some images and those of earlier runs."""

    changed: tuple[EarlierLabel, ...] = ()  # the earlier labels of images that now have another label
    missing: tuple[MissingTestImage, ...] = ()

    @property
    def untested(self) -> frozenset[str]:
        """Return the paths of images whose labels only models proposed. They are used for training, not for testing."""
        return frozenset(item.path for item in self.changed if item.before == UNLABELLED)

    def to_dict(self) -> dict[str, Any]:
        """Return the content of earlier_labels.json."""
        return {
            "changed": [item._asdict() for item in self.changed],
            "missing": [item._asdict() for item in self.missing],
        }


UNCHANGED = ChangesSinceRuns()


def run_folders_among(sources: Iterable[str | Path]) -> list[Path]:
    """Return the run folders among sources of weights or of splits. A source may also be a file in a run folder."""
    paths = [path for path in map(Path, sources) if path.exists()]
    folders = [path if path.is_dir() else path.parent for path in paths]
    return [folder for folder in dict.fromkeys(folders) if (folder / SPLIT).is_file()]


def read_changes(run: Path) -> ChangesSinceRuns:
    """Read the changes that a run stored; return `UNCHANGED` if it stored none.

    Raises:
        VitkitError: the file is damaged.
    """
    file = run / EARLIER_LABELS
    if not file.is_file():
        return UNCHANGED
    try:
        stored = from_json(read_text(file))
        changed = tuple(EarlierLabel(**row) for row in stored["changed"])
        missing = tuple(MissingTestImage(**row) for row in stored["missing"])
        if not all(isinstance(text, str) for row in (*changed, *missing) for text in row):
            raise TypeError("a row contains something other than text")
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise VitkitError("data.run-damaged", f"{file} is damaged: {error}; restore it, or train again") from error
    return ChangesSinceRuns(changed, missing)


def compare_with_runs(
    table: ImageTable, digests: Mapping[str, str], runs: Iterable[Path], tested: Collection[str] = ()
) -> ChangesSinceRuns:
    """Compare the labels of images with those that they had in earlier runs.

    If no run contains an image, but the label file marks its label as proposed by a model, the label before the
    proposal is used.

    Args:
        table: the images with their current labels.
        digests: the digest of each image's file, by path. An image without a digest counts as missing.
        runs: the folders of the runs. If several contain an image, the label of the first one is used.
        tested: the paths of the images that are tested now. The missing test images of a run count only if at least
            half of the tested images were test images of that run (images that it was trained on are not considered).
            Otherwise, the run was tested on a different data set.
    """
    now = {path: table.cell_of(i) for i, path in enumerate(table.paths)}
    present = set(digests.values())
    earlier: dict[str, EarlierLabel] = {}  # by path
    missing: dict[str, MissingTestImage] = {}  # by digest
    proposed = {item.path: item._replace(digest=digests.get(item.path, "")) for item in table.earlier}
    for run in runs:
        run_table = split_from_file(run / SPLIT)
        contents = read_contents(run / SPLIT)
        changes = read_changes(run)
        stored = {item.digest: item.before for item in changes.changed}  # labels from before this run
        labels_in_run = _labels_in_run(run.name, run_table, contents, changes)
        compared = {
            path: labels_in_run[digest] for path, digest in digests.items() if path in now and digest in labels_in_run
        }

        # Classes may have been renamed since the run. Labels that somebody changed do not show the new names.
        unchanged_since = [
            (item.before, now[path])
            for path, item in compared.items()
            if path not in proposed and item.digest not in stored
        ]
        new_name = renamed_classes(unchanged_since, table)
        labels_then = {path: new_name.get(item.before, item.before) for path, item in compared.items()}
        same = sum(label == now[path] for path, label in labels_then.items())
        has_common_class = not set(run_table.classes).isdisjoint(table.classes)
        if not has_common_class and 4 * same < 3 * len(compared):
            continue  # the run has other classes for another purpose, such as colours instead of species

        for path, label in labels_then.items():
            item = compared[path]
            # A label that a model proposed before the run remains a proposal until somebody changes it.
            is_proposal = stored.get(item.digest) == UNLABELLED and label == now[path]
            earlier.setdefault(path, item._replace(path=path, before=UNLABELLED if is_proposal else label))

        tests = _test_images_of_run(run, contents, changes, table.task)
        trained = set(contents.values()) - tests.keys()
        tested_now = [digests[path] for path in tested if path in digests and digests[path] not in trained]
        in_test_of_run = [digest for digest in tested_now if digest in tests]
        if in_test_of_run and 2 * len(in_test_of_run) >= len(tested_now):
            for digest, test in tests.items():
                if digest not in present:
                    missing.setdefault(digest, test._replace(label=new_name.get(test.label, test.label)))
    earlier = proposed | earlier
    changed = [earlier[path] for path in now if path in earlier and earlier[path].before != now[path]]
    return ChangesSinceRuns(tuple(changed), tuple(missing.values()))


def _labels_in_run(
    run: str, table: ImageTable, contents: Mapping[str, str], changes: ChangesSinceRuns
) -> dict[str, EarlierLabel]:
    """Return, by digest, the label of each file in a run, or the even earlier label that the run stored."""
    labels_of: dict[str, set[str]] = {}
    for i, path in enumerate(table.paths):
        if path in contents:
            labels_of.setdefault(contents[path], set()).add(table.cell_of(i))
    result: dict[str, EarlierLabel] = {}
    for digest, labels in labels_of.items():
        if len(labels) == 1:  # copies of a file may have different labels
            result[digest] = EarlierLabel("", labels.pop(), run, digest)
    for item in changes.changed:
        if item.digest and item.before != UNLABELLED:
            result[item.digest] = item
    return result


def renamed_classes(pairs: Iterable[tuple[str, str]], table: ImageTable) -> dict[str, str]:
    """Return the new label for each label with classes that do not exist any more: the one of most of its images.

    `pairs` are the earlier and the current label of each image, and `table` has the current classes.
    """
    classes = set(table.classes)
    votes: dict[str, Counter[str]] = {}
    for (old, new), count in Counter(pairs).items():
        has_labels = old and new and UNLABELLED not in (old, new)  # an image that is left out has the label ""
        if has_labels and not classes.issuperset(table.task.names_in(old)):
            votes.setdefault(old, Counter())[new] += count
    return {old: counts.most_common(1)[0][0] for old, counts in votes.items()}


def changes_since_run(run: Path, table: ImageTable) -> ChangesSinceRuns:
    """Return the changes that a run stored, with the current paths of its images, `table` (`images_of_run`)."""
    changes = compare_with_runs(table, digests_of_run(run, table), [run])
    return replace(changes, missing=read_changes(run).missing)


def digests_of_run(run: Path, table: ImageTable) -> dict[str, str]:
    """Return the digests of a run's images by their current paths, which are those in `table` (`images_of_run`)."""
    contents = read_contents(run / SPLIT)
    old_and_new = zip(split_from_file(run / SPLIT).paths, table.paths, strict=True)
    return {new: contents[old] for old, new in old_and_new if old in contents}


def _test_images_of_run(
    run: Path, contents: Mapping[str, str], changes: ChangesSinceRuns, task: Task
) -> dict[str, MissingTestImage]:
    """Return the test images of a run by digest, without images that its weights had been trained on before.

    The missing test images of even earlier runs, which the run stored, are included.
    """
    tests = {item.digest: item for item in changes.missing}
    if not (run / PREDICTIONS).is_file():
        return tests
    try:
        evaluation = from_json(read_text(run / EVALUATION)) if (run / EVALUATION).is_file() else {}
        seen = evaluation.get("seen")  # absent or null if there are no such images
        trained_before = set(seen["paths"]) if seen else set()
        for row in csv.DictReader(io.StringIO(read_text(run / PREDICTIONS))):
            path, label, predicted = (restored(row[name]) for name in ("path", "label", "predicted"))
            if path in contents and path not in trained_before:
                tests[contents[path]] = MissingTestImage(
                    contents[path], label or task.no_class, predicted or task.no_class, run.name
                )
    except (ValueError, TypeError, KeyError, AttributeError, csv.Error) as error:
        raise VitkitError(
            "data.run-damaged", f"the predictions of {run} are damaged ({error}): restore the run, or evaluate it"
        ) from error
    return tests
