"""Examine data for problems that would invalidate a training run, and report them before the run starts.

Each finding is a sentence that names the problem, the number of affected images, and the remedy.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

from vitkit.data.doctor.altered import Pairs
from vitkit.data.doctor.duplicates import Comparison, Kind, Link, SearchDepth, compare, connect, find_duplicates
from vitkit.data.doctor.names import find_groups
from vitkit.data.doctor.shortcuts import find_shortcuts
from vitkit.data.file_facts import PLAIN, FactDatabase, Facts, FactTable, Keep, scan
from vitkit.data.preprocess import Preprocess
from vitkit.data.splits import SPLITS, held_out_split, merge_by_scene
from vitkit.data.table import UNLABELLED, ImageTable
from vitkit.errors import VitkitError
from vitkit.system.files import from_json
from vitkit.system.progress import progress
from vitkit.text.cells import plural

TINY_CLASS = 10  # images
MOST_LOST, MOST_CROPPED = 0.5, 0.2  # report crops of more than half of the area in more than a fifth of the images
_MAX_SINGLE_FINDINGS = 20  # if more classes than this have no image in a split, they are reported together
_DECISIVE = 0.8  # Cramér's V of a property that leaves nothing to learn
_IMBALANCE = 10.0  # ratio of the largest class to the smallest

Severity = Literal["problem", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = get_args(Severity)


@dataclass(frozen=True)
class Finding:
    """Information for the user about a data set.

    A `problem` invalidates results, a `warning` may invalidate them, and a `note` does not. A run stores its findings
    in findings.json. Each problem that is not settled becomes a caveat of every figure of the run (`caveats_of`).
    """

    severity: Severity
    text: str  # a sentence; the caveat ends at the first ": ", so examples follow a colon
    is_settled: bool = False  # whether the figures of a run leave out the images concerned, so no caveat is needed

    def __str__(self) -> str:
        return f"{self.severity}: {self.text}"


def read_findings(file: Path) -> list[Finding]:
    """Read the findings of a run (findings.json); return none if the file does not exist.

    Raises:
        VitkitError: the file is damaged.
    """
    try:
        stored = from_json(file.read_text(encoding="utf-8"))
        return [Finding(**entry) for entry in stored]
    except FileNotFoundError:
        return []
    except (ValueError, TypeError) as error:
        raise VitkitError(
            "data.run-damaged", f"{file} is damaged: {error}; delete it to leave it out of the report"
        ) from error


def caveats_of(findings: Iterable[Finding]) -> list[str]:
    """Return the caveats that the findings of a run add to its figures: its problems, except settled ones."""
    problems = [finding for finding in findings if finding.severity == "problem" and not finding.is_settled]
    return list(dict.fromkeys(finding.text.partition(": ")[0] for finding in problems))


@dataclass(frozen=True)
class Copies:
    """A group of images that show the same picture."""

    images: tuple[int, ...]  # the indices of two or more images
    kind: Kind  # of the least similar pair: `exact` if all files are equal, `mirrored` if one is another's mirror image
    is_leak: bool  # whether the images are in several splits, so that a model may be tested on its training images
    is_conflict: bool  # whether the images have more than one label


def check_files(table: ImageTable, unreadable: Mapping[str, str]) -> Iterator[Finding]:
    """Report ignored and unreadable files, and the changes that a label file made."""
    if unreadable:
        examples = _list([f"{path} ({reason})" for path, reason in unreadable.items()], "; ")
        are = "is" if len(unreadable) == 1 else "are"
        yield Finding("warning", f"{len(unreadable)} of {len(table)} images {are} unreadable and left out: {examples}")
    yield from (Finding("warning", line) for line in (*table.overlooked, *table.unmatched))
    yield from (Finding("note", line) for line in table.corrections)
    if table.ignored:
        reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(table.ignored.items()))
        files_are = plural(sum(table.ignored.values()), "other file is", "other files are")
        yield Finding("note", f"{files_are} ignored: {reasons}")


def check_unreadable_held_out(table: ImageTable, unreadable: Mapping[str, str]) -> Iterator[Finding]:
    """Report unreadable images of the split on which a run is tested, if the data have splits."""
    split = held_out_split(table)
    images = table.of_split(split)
    if count := sum(path in unreadable for path in images.paths):
        do = "does" if count == 1 else "do"
        yield Finding("problem", f"{count} of the {len(images)} {split} images cannot be read and {do} not count")


def check_copies(table: ImageTable, copies: Sequence[Copies]) -> Iterator[Finding]:
    """Report pictures that occur more than once, with examples if they invalidate results."""
    same = [group for group in copies if group.is_conflict and group.kind != "altered"]
    if same:
        text = f"{_pictures_are(same)} {table.task.conflict}, and one label at most is right"
        yield Finding("problem", f"{text}: {_examples(table, same, table.labels)}")
    altered = [group for group in copies if group.is_conflict and group.kind == "altered"]
    if altered:
        text = f"{_pictures_are(altered)} {table.task.conflict}, altered or in parts; check whether each label is right"
        yield Finding("warning", f"{text}: {_examples(table, altered, table.labels)}")
    leaks = [group for group in copies if group.is_leak]
    if leaks:
        images = Counter(str(table.splits[i]) for group in leaks for i in group.images)
        held_out = sorted((split, count) for split, count in images.items() if split != "train")
        counts = " and ".join(plural(count, f"{split} image", f"{split} images") for split, count in held_out)
        text = f"{_pictures_are(leaks)} in more than one split ({counts}), which inflates results"
        yield Finding("problem", f"{text}: {_examples(table, leaks, table.splits)}", is_settled=True)
    harmless = [group for group in copies if not group.is_conflict and not group.is_leak]
    if harmless:
        groups_by_kind = Counter(group.kind for group in harmless)
        kinds = ", ".join(f"{count} {kind}" for kind, count in groups_by_kind.most_common())
        text = f"{_pictures_are(harmless)} in the data more than once ({kinds})"
        yield Finding("note", text if any(table.splits) else f"{text}; copies are kept in one split")


def check_search(depth: SearchDepth, opposite: int) -> Iterator[Finding]:
    """Report the kinds of copies that were not searched for, and pairs of mirror images in different classes.

    `depth` is the second result of `find_duplicates`, and `opposite` is the number of such pairs.
    """
    if depth != "altered":
        kind, searched = "altered", "exact, resized, recompressed and mirrored copies"
        if depth == "exact":
            kind, searched = "near", "exact copies"
        text = f"the images are too alike to tell {kind} copies from other images, so only {searched} were looked for"
        remedy = "if they are frames of a few scenes, keep each scene in one split: --group-by"
        yield Finding("warning", f"{text}; {remedy}")
    if opposite:
        images_are = plural(opposite, "image is the mirror image", "images are mirror images")
        yield Finding("note", f"{images_are} of one in another class; if left and right matter, train with --no-hflip")


def check_classes(table: ImageTable, unreadable: Sequence[str] = ()) -> Iterator[Finding]:
    """Report classes without images, with few images, or with far fewer images than other classes.

    Also note that a table is multi-label, if it is: a single `;` in one label, perhaps a mistake, is enough for that.
    `unreadable` holds the names of classes whose images are all unreadable.
    """
    summary = table.task.summary([len(table.classes_of(i)) for i in range(len(table))])
    if summary is not None:
        yield Finding("note", summary)
    missing = sorted({*unreadable, *table.empty})
    if missing:
        have, are = ("class folder has", "is") if len(missing) == 1 else ("class folders have", "are")
        yield Finding("warning", f"{len(missing)} {have} no readable image and {are} left out: {_list(missing)}")
    counts = {name: count for name, count in table.counts().items() if name != UNLABELLED}
    tiny = [f"{name} ({count})" for name, count in counts.items() if count < TINY_CLASS]
    if tiny:
        classes_have = plural(len(tiny), "class has", "classes have")
        yield Finding("warning", f"{classes_have} fewer than {TINY_CLASS} images: {_list(tiny)}")
    if not counts:
        return
    largest = max(counts, key=counts.__getitem__)
    smallest = min(counts, key=counts.__getitem__)
    if counts[largest] > _IMBALANCE * counts[smallest]:
        text = f"the classes are uneven, {counts[largest]} images of {largest!r} and {counts[smallest]} of {smallest!r}"
        yield Finding("note", f"{text}; look at the balanced accuracy too")


def check_splits(table: ImageTable) -> Iterator[Finding]:
    """Report classes that have no image in one of the splits, and data without training images."""
    counts_by_split = {name: table.of_split(name).counts() for name in SPLITS if name in table.splits}
    if counts_by_split and "train" not in counts_by_split:
        splits = " and ".join(counts_by_split)
        yield Finding("warning", f"all images are in {splits}: they can be used for evaluation, but not for training")
    counts = table.counts()
    splits_without: dict[str, tuple[str, ...]] = {}  # the splits that have no image of a class, by class
    for name in counts:
        missing = tuple(split for split, in_split in counts_by_split.items() if not in_split[name])
        if name != UNLABELLED and missing:
            splits_without[name] = missing
    if len(splits_without) > _MAX_SINGLE_FINDINGS:
        for missing in dict.fromkeys(splits_without.values()):
            names = [f"{name} ({counts[name]})" for name, splits in splits_without.items() if splits == missing]
            effect = ", so the model cannot learn them" if "train" in missing else ""
            text = f"{plural(len(names), 'class has', 'classes have')} no image in {' or '.join(missing)}{effect}"
            yield Finding("warning", f"{text}; the numbers of their images: {_list(names)}")
        return
    for name, missing in splits_without.items():
        effect = ", so the model cannot learn it" if "train" in missing else ""
        images = plural(counts[name], "image", "images")
        yield Finding("warning", f"class {name!r} has {images}, none of them in {' or '.join(missing)}{effect}")


def check_scenes(table: ImageTable, groups: Sequence[int]) -> Iterator[Finding]:
    """Report scenes or groups (a number for each image) that are in more than one of the data's own splits."""
    splits: dict[int, set[str | None]] = {}
    for group, split in zip(groups, table.splits, strict=True):
        splits.setdefault(group, set()).add(split)
    if divided := sum(len(names) > 1 for names in splits.values()):
        scenes_are = plural(divided, "scene or group is", "scenes or groups are")
        text = f"{scenes_are} in more than one of the data's own splits, which inflates results"
        yield Finding("problem", f"{text}; held-out images of these do not count", is_settled=True)


def check_names(table: ImageTable) -> Iterator[Finding]:
    """Report groups of images that the names of files reveal, unless each group is in one of the data's own splits."""
    named = find_groups(table)
    if named is None:
        return
    pattern, groups = named
    divided = [images for images in groups.values() if len({table.splits[i] for i in images}) > 1]
    if any(table.splits) and not divided:
        return
    text = f"the names of {sum(map(len, groups.values()))} images show {len(groups)} groups"
    if divided:
        text += f", of which {plural(len(divided), 'is', 'are')} in more than one of the data's own splits"
        first = divided[0][0]
        other = next(i for i in divided[0] if table.splits[i] != table.splits[first])
    else:
        first, other, *_ = next(iter(groups.values()))
    text += f" ({table.paths[first]} and {table.paths[other]}); results are inflated unless each stays in one split"
    yield Finding("problem", f"{text}: train with --group-by {shlex.quote(pattern)}")


def check_shortcuts(table: ImageTable, facts: Sequence[Facts]) -> Iterator[Finding]:
    """Report properties of files that tell the classes apart, so that a model need not learn anything else."""
    shortcuts = find_shortcuts(table, facts)
    if shortcuts:
        names = _list([f"{each.name} (right for {100 * each.accuracy:.0f} % of the images)" for each in shortcuts])
        text = f"the label can be guessed from what is not the subject of the pictures: {names}; "
        text += f"the most frequent label is right for {100 * shortcuts[0].baseline:.0f} %"
        severity: Literal["problem", "warning"] = "problem" if shortcuts[0].strength >= _DECISIVE else "warning"
        yield Finding(severity, f"{text}; a model may learn that alone, so collect all classes in the same way")


def check_pictures(table: ImageTable, facts: Sequence[Facts]) -> Iterator[Finding]:
    """Report unusual properties of readable pictures."""
    all_modes, are_animated, doubts, borders = FactTable.of(facts).columns("mode", "is_animated", "doubt", "border")
    plain = [path for path, border in zip(table.paths, borders, strict=True) if border == PLAIN]
    if plain:
        pictures_show = plural(len(plain), "picture is of one colour and shows", "pictures are of one colour and show")
        yield Finding("warning", f"{pictures_show} nothing: {_list(plain)}")
    modes = Counter(mode for mode in all_modes if mode not in ("RGB", "L"))
    if modes:
        counts = ", ".join(f"{count} {mode}" for mode, count in modes.most_common())
        are = plural(sum(modes.values()), "image is", "images are")
        yield Finding("note", f"{are} neither RGB nor grey, and converted (transparency becomes white): {counts}")
    animated = sum(are_animated)
    if animated:
        yield Finding("note", f"of {plural(animated, 'file', 'files')} with several frames, the first one is used")
    doubtful = [f"{path} ({doubt})" for path, doubt in zip(table.paths, doubts, strict=True) if doubt]
    if doubtful:
        are = plural(len(doubtful), "picture is", "pictures are")
        yield Finding("warning", f"{are} possibly not read as meant: {_list(doubtful, '; ', 3)}")


def check_crop(facts: Sequence[Facts], preprocess: Preprocess) -> Iterator[Finding]:
    """Report if the preprocessing crops away a large part of many pictures."""
    sizes = Counter(zip(*FactTable.of(facts).columns("width", "height"), strict=True))
    lost = {size: 1 - preprocess.kept(*size) for size in sizes}  # fractions of the area
    cropped = sum(images for size, images in sizes.items() if lost[size] > MOST_LOST)
    if cropped > MOST_CROPPED * len(facts):
        average = sum(lost[size] * images for size, images in sizes.items()) / len(facts)
        text = f"the crop loses more than half of the area of {cropped} of {len(facts)} images"
        text += f" ({100 * average:.0f} % on average)"
        remedy = "if the edges matter, --set fit=squash or --set fit=pad shows the whole picture"
        yield Finding("warning", f"{text}; {remedy}")


def _examples(table: ImageTable, copies: Sequence[Copies], values: Sequence[Any]) -> str:
    """Name two images of each of the first groups, whose labels or splits (`values`) differ."""
    pairs = []
    for group in copies:
        first = group.images[0]
        other = next(i for i in group.images if values[i] != values[first])
        kind = "" if group.kind == "exact" else f" ({group.kind})"
        pairs.append(f"{table.paths[first]} = {table.paths[other]}{kind}")
    return _list(pairs, "; ", 3)


def _pictures_are(copies: Sequence[Copies]) -> str:
    return plural(len(copies), "picture is", "pictures are")


def _list(items: Sequence[str], separator: str = ", ", max_items: int = 5) -> str:
    rest = len(items) - max_items
    return separator.join(items[:max_items]) + (f"{separator}and {rest} more" if rest > 0 else "")


@dataclass(frozen=True)
class Diagnosis:
    """The result of examining a data set."""

    table: ImageTable  # the readable images; classes without any are dropped
    facts: FactTable  # of these images
    unreadable: dict[str, str]  # the reason for each unreadable image, by path
    copies: tuple[Copies, ...]
    twins: tuple[int, ...]  # a number for each image, equal for copies of one picture
    findings: tuple[Finding, ...]  # the most severe first

    @property
    def has_problems(self) -> bool:
        """Return whether a finding is a `problem`, which would invalidate results on these data."""
        return any(finding.severity == "problem" for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """Return the diagnosis as plain JSON types."""
        table, facts = self.table, self.facts
        widths, heights, formats, modes = facts.columns("width", "height", "format", "mode")
        return {
            "data": table.name,
            "root": str(table.place),
            "layout": table.layout,
            "images": len(table),
            "classes": table.counts(),
            "splits": dict(Counter(split for split in table.splits if split is not None)),
            "ignored": table.ignored,
            "unreadable": self.unreadable,
            "formats": dict(Counter(formats).most_common()),
            "modes": dict(Counter(modes).most_common()),
            "width": _range(widths),
            "height": _range(heights),
            "aspect": _range([round(width / height, 3) for width, height in zip(widths, heights, strict=True)]),
            "copies": [
                {
                    "kind": copies.kind,
                    "leak": copies.is_leak,
                    "conflict": copies.is_conflict,
                    "images": [
                        {"path": table.paths[i], "class": table.name_of(i), "split": table.splits[i]}
                        for i in copies.images
                    ],
                }
                for copies in self.copies
            ],
            "findings": [{"severity": finding.severity, "text": finding.text} for finding in self.findings],
        }


def examine(
    table: ImageTable, preprocess: Preprocess | None = None, *, seek_groups: bool = True, keep: Keep | None = None
) -> Diagnosis:
    """Decode every file of a table, search for copies, and report problems.

    Files that have been examined before are not decoded again.

    Args:
        table: the images.
        preprocess: the model's preprocessing, to report how much a crop removes; None to skip this check.
        seek_groups: whether to search the names of files for groups of images; False if the user has named the groups,
            or if nothing is to be tested.
        keep: a function that receives each picture that is decoded (`file_facts.scan`).

    Raises:
        VitkitError: the readable images have fewer than two different labels, or a table of one class has no readable
            image.
    """
    with FactDatabase() as database:
        all_facts = scan(table.files(), database, partial(progress, "reading images"), keep)
        errors = all_facts.column("error")
        unreadable = {path: error for path, error in zip(table.paths, errors, strict=True) if error is not None}
        readable = table.take([i for i, error in enumerate(errors) if error is None])
        if len(set(readable.labels)) < min(2, len(table.classes)):
            text = "no image is left" if len(table.classes) == 1 else table.task.too_few_classes
            text += f"; {len(unreadable)} of {len(table)} images are unreadable"
            if unreadable:
                path, error = next(iter(unreadable.items()))
                text += f" (first: {path}: {error})"
            raise VitkitError("data.images-unreadable", f"{table.name}: {text}")
        readable = readable.compact()
        facts = all_facts.take([i for i, error in enumerate(errors) if error is None])
        links, opposite, depth = _find_links(readable, facts, database, partial(progress, "comparing images"))

    twins = connect(links, len(facts))  # the number of the group of each image
    kinds: dict[int, set[Kind]] = {}  # of the links in each group of copies
    for link in links:
        kinds.setdefault(twins[link.first], set()).add(link.kind)
    members: dict[int, list[int]] = {group: [] for group in kinds}
    for i, group in enumerate(twins):
        if group in members:
            members[group].append(i)
    copies = []
    for group, images in members.items():
        kind = max(kinds[group], key=get_args(Kind).index)  # the kinds are in order of decreasing similarity
        splits = {readable.splits[i] for i in images}
        names = {readable.name_of(i) for i in images} - {UNLABELLED}
        copies.append(Copies(tuple(images), kind, is_leak=len(splits) > 1, is_conflict=len(names) > 1))

    findings = [
        *check_files(table, unreadable),
        *check_copies(readable, copies),
        *check_search(depth, opposite),
        *check_classes(readable, unreadable=sorted(set(table.classes) - set(readable.classes))),
        *check_splits(readable),
    ]
    if readable.groups:
        findings += check_scenes(readable, merge_by_scene(readable, None, range(len(readable))))
    elif seek_groups:
        findings += check_names(readable)
    findings += check_shortcuts(readable, facts)
    findings += check_pictures(readable, facts)
    if preprocess is not None:
        findings += check_crop(facts, preprocess)
    findings.sort(key=lambda finding: SEVERITIES.index(finding.severity))
    return Diagnosis(readable, facts, unreadable, tuple(copies), tuple(twins), tuple(findings))


def find_twins(table: ImageTable, facts: Sequence[Facts]) -> tuple[int, ...]:
    """Return a number for each image, equal for copies of one picture.

    Two images may have the same number only because both are copies of a third. To group a subset of images, call this
    function for the subset, instead of selecting from the result for all images. All images must have been examined.
    """
    with FactDatabase() as database:
        links, _, _ = _find_links(table, facts, database, lambda *_: None)
    return tuple(connect(links, len(facts)))


def _find_links(
    table: ImageTable, facts: Sequence[Facts], database: FactDatabase, progress: Callable[[int, int], None]
) -> tuple[list[Link], int, SearchDepth]:
    """Return the copies among images, the number of mirror images in different classes, and how far the search got.

    Mirror images in different classes are not copies, because the classes may distinguish left from right.
    """
    all_digests = FactTable.of(facts).column("digest")
    digests = tuple(sorted(set(all_digests)))
    stored = database.find_comparison(digests)
    comparison = None
    if stored is not None:
        compared, (near, altered) = stored
        comparison = Comparison(
            compared, None if near is None else Pairs(*near), None if altered is None else Pairs(*altered)
        )
    if comparison is None or comparison.digests != digests:
        comparison = compare(facts, comparison, progress)  # skips the pairs that were compared earlier
        database.add_comparison(comparison.digests, [comparison.pairs, comparison.altered])
    links, depth = find_duplicates(facts, comparison=comparison)
    if not any(link.kind == "mirrored" for link in links):
        return links, 0, depth
    labels: dict[bytes, set[int]] = {}  # files of the same content may have several classes
    for digest, label in zip(all_digests, table.labels, strict=True):
        labels.setdefault(digest, set()).add(label)

    copies = []
    for link in links:
        has_common_label = not labels[all_digests[link.first]].isdisjoint(labels[all_digests[link.second]])
        if link.kind != "mirrored" or has_common_label:
            copies.append(link)
    return copies, len(links) - len(copies), depth


def _range(values: Sequence[float]) -> dict[str, float]:
    """Return the minimum, the median and the maximum."""
    ordered = sorted(values)
    return {"min": ordered[0], "median": ordered[len(ordered) // 2], "max": ordered[-1]}
