"""Examine data for problems that would invalidate a training run, and report them before the run starts.

Each finding is a sentence that names the problem, the number of affected images, and the remedy.
"""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

from vitkit.data.doctor.duplicates import Compared, Kind, Link, LookedFor, compare, connect, find_duplicates
from vitkit.data.doctor.names import find_groups
from vitkit.data.doctor.shortcuts import find_shortcuts
from vitkit.data.file_facts import PLAIN, Facts, FactTable, Keep, Memory, scan
from vitkit.data.file_names import SUFFIXES
from vitkit.data.preprocess import Preprocess
from vitkit.data.splits import SPLITS, held_out_split, scenes
from vitkit.data.table import UNLABELLED, ImageTable
from vitkit.errors import VitkitError
from vitkit.system.files import from_json
from vitkit.system.progress import progress
from vitkit.text.cells import plural

TINY_CLASS = 10  # images
MOST_LOST, MOST_CROPPED = 0.5, 0.2  # warn if a crop loses so large a share of the area in so many of the images
_SINGLY = 20  # if more classes than this lack a split, they are reported together
_DECISIVE = 0.8  # Cramér's V of a property that leaves nothing to learn
_IMBALANCE = 10.0  # ratio of the largest class to the smallest
_JPEG = frozenset((".jpg", ".jpeg", ".jpe", ".jfif", ".mpo"))
_SUFFIXES_OF = {
    "JPEG": _JPEG,
    "MPO": _JPEG,
    "TIFF": frozenset((".tif", ".tiff")),
    "HEIF": frozenset((".heic", ".heif", ".hif")),
    "PPM": frozenset((".ppm", ".pgm")),
}

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
        if not isinstance(stored, list):
            raise TypeError("it is not a list")
        findings = []
        for entry in stored:
            if isinstance(entry, str):  # earlier versions stored text, such as "note: 2 images are ..."
                severity: Severity = next((name for name in SEVERITIES if entry.startswith(f"{name}: ")), "note")
                findings.append(Finding(severity, entry.removeprefix(f"{severity}: ")))
            else:
                findings.append(Finding(**entry))
        return findings
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
        named = _list([f"{path} ({reason})" for path, reason in unreadable.items()], "; ")
        were = f"{len(unreadable)} of {len(table)} images {'is' if len(unreadable) == 1 else 'are'}"
        yield Finding("warning", f"{were} unreadable and left out: {named}")
    yield from (Finding("warning", line) for line in (*table.overlooked, *table.unmatched))
    yield from (Finding("note", line) for line in table.corrections)
    if table.ignored:
        reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(table.ignored.items()))
        were = plural(sum(table.ignored.values()), "other file is", "other files are")
        yield Finding("note", f"{were} ignored: {reasons}")


def check_lost(table: ImageTable, unreadable: Mapping[str, str]) -> Iterator[Finding]:
    """Report unreadable images of the split that a run is tested on, if the data come split."""
    split = held_out_split(table)
    images = table.of_split(split)
    if lost := sum(path in unreadable for path in images.paths):
        does = "does" if lost == 1 else "do"
        yield Finding("problem", f"{lost} of the {len(images)} {split} images cannot be read and {does} not count")


def check_copies(table: ImageTable, copies: Sequence[Copies]) -> Iterator[Finding]:
    """Report pictures that occur more than once, with examples if they invalidate results."""
    conflicts, leaks = [group for group in copies if group.is_conflict], [group for group in copies if group.is_leak]
    what = table.task.conflict
    if same := [group for group in conflicts if group.kind != "altered"]:
        shown = _list([_pair(table, group, table.labels) for group in same], "; ", 3)
        yield Finding("problem", f"{_pictures(same)} {what}, and one label at most is right: {shown}")
    if altered := [group for group in conflicts if group.kind == "altered"]:
        shown = _list([_pair(table, group, table.labels) for group in altered], "; ", 3)
        text = f"{_pictures(altered)} {what}, altered or in parts; check whether each label is right"
        yield Finding("warning", f"{text}: {shown}")
    if leaks:
        held_out = Counter(str(table.splits[i]) for group in leaks for i in group.images if table.splits[i] != "train")
        counts = " and ".join(plural(held_out[name], f"{name} image", f"{name} images") for name in sorted(held_out))
        shown = _list([_pair(table, group, table.splits) for group in leaks], "; ", 3)
        yield Finding(
            "problem",
            f"{_pictures(leaks)} in more than one split ({counts}), which inflates results: {shown}",
            is_settled=True,
        )
    harmless = [group for group in copies if not group.is_conflict and not group.is_leak]
    if harmless:
        kinds = ", ".join(f"{count} {kind}" for kind, count in Counter(group.kind for group in harmless).most_common())
        kept = "" if any(table.splits) else "; copies are kept in one split"
        yield Finding("note", f"{_pictures(harmless)} in the data more than once ({kinds}){kept}")


def check_likeness(looked_for: LookedFor, opposite: int) -> Iterator[Finding]:
    """Report the kinds of copies that were not searched for, and pairs of mirror images in different classes.

    `looked_for` is the second result of `find_duplicates`, and `opposite` is the number of such pairs.
    """
    if looked_for != "altered":
        left = {"exact": "exact copies", "near": "exact, resized, recompressed and mirrored copies"}[looked_for]
        kind = {"exact": "near", "near": "altered"}[looked_for]
        text = f"the images are too alike to tell {kind} copies from other images, so only {left} were looked for"
        yield Finding(
            "warning", f"{text}; if they are frames of a few scenes, keep each scene in one split: --group-by"
        )
    if opposite:
        were = plural(opposite, "image is the mirror image", "images are mirror images")
        yield Finding("note", f"{were} of one in another class; if left and right matter, train with --no-hflip")


def check_sets(table: ImageTable) -> Iterator[Finding]:
    """Report that a table is multi-label, for which a single `;` in one label suffices, possibly by mistake."""
    summary = table.task.summary([len(table.classes_of(i)) for i in range(len(table))])
    if summary is not None:
        yield Finding("note", summary)


def check_classes(table: ImageTable, lost: Sequence[str] = ()) -> Iterator[Finding]:
    """Report classes without images, with few images, or with far fewer images than other classes.

    `lost` holds the names of classes whose images are all unreadable.
    """
    if gone := sorted({*lost, *table.empty}):
        have, are = ("class folder has", "is") if len(gone) == 1 else ("class folders have", "are")
        yield Finding("warning", f"{len(gone)} {have} no readable image and {are} left out: {_list(gone)}")
    counts = {name: count for name, count in table.counts().items() if name != UNLABELLED}
    if tiny := [f"{name} ({count})" for name, count in counts.items() if count < TINY_CLASS]:
        have = plural(len(tiny), "class has", "classes have")
        yield Finding("warning", f"{have} fewer than {TINY_CLASS} images: {_list(tiny)}")
    if not counts:
        return
    (most, largest), (least, smallest) = (pick(counts.items(), key=lambda item: item[1]) for pick in (max, min))
    if largest > _IMBALANCE * smallest:
        text = f"the classes are uneven, {largest} images of {most!r} and {smallest} of {least!r}"
        yield Finding("note", f"{text}; look at the balanced accuracy too")


def check_splits(table: ImageTable) -> Iterator[Finding]:
    """Report classes that have no image in one of the splits, and data without training images."""
    have = {name: table.of_split(name).counts() for name in SPLITS if name in table.splits}
    if have and "train" not in have:
        there = " and ".join(have)
        yield Finding("warning", f"all images are in {there}: they can be used for evaluation, but not for training")
    lacking = [
        (name, count, missing)
        for name, count in table.counts().items()
        if name != UNLABELLED and (missing := tuple(split for split, counts in have.items() if not counts[name]))
    ]
    if len(lacking) > _SINGLY:
        for missing in dict.fromkeys(missing for _, _, missing in lacking):
            counts = [f"{name} ({count})" for name, count, absent in lacking if absent == missing]
            lesson = ", so the model cannot learn them" if "train" in missing else ""
            text = f"{plural(len(counts), 'class has', 'classes have')} no image in {' or '.join(missing)}{lesson}"
            yield Finding("warning", f"{text}; the numbers of their images: {_list(counts)}")
        return
    for name, count, missing in lacking:
        lesson = ", so the model cannot learn it" if "train" in missing else ""
        images = plural(count, "image", "images")
        yield Finding("warning", f"class {name!r} has {images}, none of them in {' or '.join(missing)}{lesson}")


def check_scenes(table: ImageTable, groups: Sequence[int]) -> Iterator[Finding]:
    """Report scenes or groups (a number for each image) that are in more than one of the data's own splits."""
    splits: dict[int, set[str | None]] = {}
    for group, split in zip(groups, table.splits, strict=True):
        splits.setdefault(group, set()).add(split)
    if divided := sum(len(names) > 1 for names in splits.values()):
        named = plural(divided, "scene or group is", "scenes or groups are")
        text = f"{named} in more than one of the data's own splits, which inflates results"
        yield Finding("problem", f"{text}; held-out images of these do not count", is_settled=True)


def check_names(table: ImageTable) -> Iterator[Finding]:
    """Report groups of images that the names of files reveal, unless each group is in one of the data's own splits."""
    groups = find_groups(table)
    if groups is None:
        return
    divided = [name for name, images in groups.members.items() if len({table.splits[i] for i in images}) > 1]
    if any(table.splits) and not divided:
        return
    first, *others = groups.members[divided[0] if divided else next(iter(groups.members))]
    other = next(i for i in others if not divided or table.splits[i] != table.splits[first])
    text = f"the names of {sum(map(len, groups.members.values()))} images show {len(groups.members)} groups"
    if divided:
        text += f", of which {plural(len(divided), 'is', 'are')} in more than one of the data's own splits"
    text += f" ({table.paths[first]} and {table.paths[other]}); results are inflated unless each stays in one split"
    yield Finding("problem", f"{text}: train with --group-by {shlex.quote(groups.pattern)}")


def check_shortcuts(table: ImageTable, facts: Sequence[Facts]) -> Iterator[Finding]:
    """Report properties of files that tell the classes apart, so that nothing else need be learned."""
    if shortcuts := find_shortcuts(table, facts):
        named = _list([f"{each.name} (right for {100 * each.right:.0f} % of the images)" for each in shortcuts])
        text = f"the label can be guessed from what is not the subject of the pictures: {named}; "
        text += f"the most frequent label is right for {100 * shortcuts[0].trivial:.0f} %"
        severity: Literal["problem", "warning"] = "problem" if shortcuts[0].strength >= _DECISIVE else "warning"
        yield Finding(severity, f"{text}; a model may learn that alone, so collect all classes in the same way")


def check_pictures(table: ImageTable, facts: Sequence[Facts]) -> Iterator[Finding]:
    """Report unusual properties of readable pictures."""
    all_modes, are_animated, doubts, formats, borders = FactTable.of(facts).columns(
        "mode", "is_animated", "doubt", "format", "border"
    )
    if plain := [path for path, border in zip(table.paths, borders, strict=True) if border == PLAIN]:
        were = plural(len(plain), "picture is of one colour and shows", "pictures are of one colour and show")
        yield Finding("warning", f"{were} nothing: {_list(plain)}")
    if modes := Counter(mode for mode in all_modes if mode not in ("RGB", "L")):
        named = ", ".join(f"{count} {mode}" for mode, count in modes.most_common())
        were = plural(sum(modes.values()), "image is", "images are")
        yield Finding("note", f"{were} neither RGB nor grey, and converted (transparency becomes white): {named}")
    if animated := sum(are_animated):
        yield Finding("note", f"of {plural(animated, 'file', 'files')} with several frames, the first one is used")
    doubtful = [f"{path} ({doubt})" for path, doubt in zip(table.paths, doubts, strict=True) if doubt]
    if doubtful:
        were = plural(len(doubtful), "picture is", "pictures are")
        yield Finding("warning", f"{were} possibly not read as meant: {_list(doubtful, '; ', 3)}")
    misnamed = []
    for path, form in zip(table.paths, formats, strict=True):
        suffix = os.path.splitext(path)[1].lower()  # noqa: PTH122  # ten times as fast as a Path's
        if suffix in SUFFIXES and suffix not in _SUFFIXES_OF.get(form, {f".{form.lower()}"}):
            misnamed.append(path)
    if misnamed:
        were = plural(len(misnamed), "image is", "images are")
        yield Finding("note", f"{were} of another format than the name says, and read anyway: {_list(misnamed)}")


def check_crop(facts: Sequence[Facts], preprocess: Preprocess) -> Iterator[Finding]:
    """Report if the preprocessing crops away a large part of many pictures."""
    sizes = Counter(zip(*FactTable.of(facts).columns("width", "height"), strict=True))
    lost = {size: 1 - preprocess.kept(*size) for size in sizes}
    cropped = sum(images for size, images in sizes.items() if lost[size] > MOST_LOST)
    if cropped > MOST_CROPPED * len(facts):
        average = f"{100 * sum(lost[size] * images for size, images in sizes.items()) / len(facts):.0f} % on average"
        text = f"the crop loses more than half of the area of {cropped} of {len(facts)} images ({average})"
        remedy = "if the edges matter, --set fit=squash or --set fit=pad shows the whole picture"
        yield Finding("warning", f"{text}; {remedy}")


def _pair(table: ImageTable, copies: Copies, groups: Sequence[Any]) -> str:
    """Return the paths of two copies whose `groups` (labels or splits) differ, as text."""
    first = copies.images[0]
    other = next(i for i in copies.images if groups[i] != groups[first])
    return f"{table.paths[first]} = {table.paths[other]}" + ("" if copies.kind == "exact" else f" ({copies.kind})")


def _pictures(copies: Sequence[Copies]) -> str:
    return plural(len(copies), "picture is", "pictures are")


def _list(items: Sequence[str], separator: str = ", ", most: int = 5) -> str:
    rest = len(items) - most
    return separator.join(items[:most]) + (f"{separator}and {rest} more" if rest > 0 else "")


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
        keep: receives each picture that is decoded (`file_facts.scan`).

    Raises:
        VitkitError: the readable images have fewer than two different labels, or a table of one class has no readable
            image.
    """
    with Memory() as memory:
        everything = scan(table.files(), memory, partial(progress, "reading images"), keep)
        errors = everything.column("error")
        unreadable = {path: error for path, error in zip(table.paths, errors, strict=True) if error is not None}
        readable = table.take([i for i, path in enumerate(table.paths) if path not in unreadable])
        if len(set(readable.labels)) < min(2, len(table.classes)):
            first = f" (first: {': '.join(next(iter(unreadable.items())))})" if unreadable else ""
            left = "no image is left" if len(table.classes) == 1 else table.task.too_few_classes
            message = f"{len(unreadable)} of {len(table)} images are unreadable{first}"
            raise VitkitError("data.images-unreadable", f"{table.name}: {left}; {message}")
        readable = readable.compact()
        facts = everything.take([i for i, error in enumerate(errors) if error is None])
        links, opposite, looked_for = _find_links(readable, facts, memory, partial(progress, "comparing images"))
    twins = connect(links, len(facts))
    copies = _copies(readable, links, twins)
    noted = [
        *check_files(table, unreadable),
        *check_copies(readable, copies),
        *check_likeness(looked_for, opposite),
        *check_sets(readable),
        *check_classes(readable, lost=sorted(set(table.classes) - set(readable.classes))),
        *check_splits(readable),
        *(check_scenes(readable, scenes(readable, None, range(len(readable)))) if readable.groups else ()),
        *(check_names(readable) if seek_groups and not readable.groups else ()),
        *check_shortcuts(readable, facts),
        *check_pictures(readable, facts),
        *(check_crop(facts, preprocess) if preprocess is not None else ()),
    ]
    noted.sort(key=lambda finding: SEVERITIES.index(finding.severity))
    return Diagnosis(readable, facts, unreadable, tuple(copies), tuple(twins), tuple(noted))


def find_twins(table: ImageTable, facts: Sequence[Facts]) -> tuple[int, ...]:
    """Return a number for each image, equal for copies of one picture.

    Two images may have the same number only because both are copies of a third. To group a subset of images, call this
    function for the subset, instead of selecting from the result for all images. All images must have been examined.
    """
    with Memory() as memory:
        links, _, _ = _find_links(table, facts, memory, lambda *_: None)
    return tuple(connect(links, len(facts)))


def _find_links(
    table: ImageTable, facts: Sequence[Facts], memory: Memory, progress: Callable[[int, int], None]
) -> tuple[list[Link], int, LookedFor]:
    """Return the copies among images, the number of mirror images in different classes, and how far the search got.

    Mirror images in different classes are not copies, because the classes may distinguish left from right.
    """
    digests = tuple(sorted(set(FactTable.of(facts).column("digest"))))
    before = memory.compared(digests)
    compared = None if before is None else Compared(before[0], *before[1])
    if compared is None or compared.digests != digests:  # pairs that were compared earlier are not compared again
        compared = compare(facts, compared, progress)
        memory.learn_compared(compared.digests, [compared.pairs, compared.altered])
    links, looked_for = find_duplicates(facts, compared=compared)
    if not any(link.kind == "mirrored" for link in links):
        return links, 0, looked_for
    labels: dict[bytes, set[int]] = {}  # files of the same content may have several classes
    for digest, label in zip(FactTable.of(facts).column("digest"), table.labels, strict=True):
        labels.setdefault(digest, set()).add(label)
    kept = [
        link
        for link in links
        if link.kind != "mirrored" or labels[facts[link.first].digest] & labels[facts[link.second].digest]
    ]
    return kept, len(links) - len(kept), looked_for


def _copies(table: ImageTable, links: Sequence[Link], twins: Sequence[int]) -> list[Copies]:
    kinds: dict[int, set[Kind]] = {}
    for link in links:
        kinds.setdefault(twins[link.first], set()).add(link.kind)
    members: dict[int, list[int]] = {root: [] for root in kinds}
    for i, root in enumerate(twins):
        if root in members:
            members[root].append(i)
    return [
        Copies(
            tuple(images),
            next(kind for kind in reversed(get_args(Kind)) if kind in kinds[root]),
            is_leak=len({table.splits[i] for i in images}) > 1,
            is_conflict=len({table.name_of(i) for i in images} - {UNLABELLED}) > 1,
        )
        for root, images in members.items()
    ]


def _range(values: Sequence[float]) -> dict[str, float]:
    """Return the minimum, the median and the maximum."""
    ordered = sorted(values)
    return {"min": ordered[0], "median": ordered[len(ordered) // 2], "max": ordered[-1]}
