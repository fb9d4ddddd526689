"""Look for problems that would spoil a training, before it starts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, get_args

from vitkit.data.doctor import findings
from vitkit.data.doctor.duplicates import Compared, Kind, Link, LookedFor, compare, connect, find_duplicates
from vitkit.data.doctor.findings import Copies, Finding
from vitkit.data.doctor.scan import scan
from vitkit.data.file_facts import Facts, Memory
from vitkit.data.preprocess import Preprocess
from vitkit.data.table import ImageTable
from vitkit.errors import VitkitError
from vitkit.system.progress import progress


@dataclass(frozen=True)
class Diagnosis:
    """The content of a data set, and its problems.

    Attributes:
        table: the readable images, without classes that have none.
        facts: what each of them holds.
        unreadable: reason of each path that was left out.
        copies: pictures that are there more than once.
        twins: a number for each image, the same for copies of one picture.
        findings: the findings in words, the worst first.
    """

    table: ImageTable
    facts: tuple[Facts, ...]
    unreadable: dict[str, str]
    copies: tuple[Copies, ...]
    twins: tuple[int, ...]
    findings: tuple[Finding, ...]

    @property
    def has_problems(self) -> bool:
        """Return whether a result on this data could not be trusted."""
        return any(finding.severity == "problem" for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        table, facts = self.table, self.facts
        return {
            "data": table.name,
            "root": str(table.root),
            "layout": table.layout,
            "images": len(table),
            "classes": table.counts(),
            "splits": dict(Counter(split for split in table.splits if split is not None)),
            "ignored": table.ignored,
            "unreadable": self.unreadable,
            "formats": dict(Counter(fact.format for fact in facts).most_common()),
            "modes": dict(Counter(fact.mode for fact in facts).most_common()),
            "width": _range([fact.width for fact in facts]),
            "height": _range([fact.height for fact in facts]),
            "aspect": _range([round(fact.width / fact.height, 3) for fact in facts]),
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


def examine(table: ImageTable, preprocess: Preprocess | None = None) -> Diagnosis:
    """Decode every file once, in full, and look for what a careful person would look for.

    Args:
        table: the images.
        preprocess: how the model will see them; without it, how much a crop loses is not looked at.

    Raises:
        VitkitError: fewer than two classes have a readable image; of a table of one class, none is readable.
    """

    with Memory() as memory:
        everything = scan([table.file(i) for i in range(len(table))], memory, partial(progress, "reading images"))
        unreadable = {table.paths[i]: fact.error for i, fact in enumerate(everything) if fact.error is not None}
        readable = _readable(table, unreadable)
        facts = [fact for fact in everything if fact.error is None]
        links, looked_for = _compare(facts, memory, partial(progress, "comparing images"))
    links, opposite = _set_opposites_apart(links, readable, facts)
    twins = connect(links, len(facts))
    copies = _copies(readable, links, twins)
    noted = [
        *findings.of_files(table, unreadable),
        *findings.of_copies(readable, copies),
        *findings.of_likeness(looked_for, opposite),
        *findings.of_sets(readable),
        *findings.of_classes(readable, lost=sorted(set(table.classes) - set(readable.classes))),
        *findings.of_splits(readable),
        *findings.of_pictures(readable, facts),
        *(findings.of_crop(facts, preprocess) if preprocess is not None else ()),
    ]
    noted.sort(key=lambda finding: ("problem", "warning", "note").index(finding.severity))
    return Diagnosis(readable, tuple(facts), unreadable, tuple(copies), tuple(twins), tuple(noted))


def find_twins(table: ImageTable, facts: Sequence[Facts]) -> tuple[int, ...]:
    """Return a group number for each image, equal for copies; computed again if connecting images are gone.

    Args:
        table: readable images, all of which have been compared before.
        facts: what each of them holds.
    """
    with Memory() as memory:
        links, _ = _compare(list(facts), memory, lambda *_: None)
    links, _ = _set_opposites_apart(links, table, facts)
    return tuple(connect(links, len(facts)))


def _compare(facts: list[Facts], memory: Memory, progress: Callable[[int, int], None]) -> tuple[list[Link], LookedFor]:
    """Compare new images with all; pairs that were compared before are not compared again."""
    digests = tuple(sorted({fact.digest for fact in facts}))
    before = memory.compared(digests)
    compared = None if before is None else Compared(before[0], *before[1])
    if compared is None or compared.digests != digests:
        compared = compare(facts, compared, progress)
        memory.learn_compared(compared.digests, [compared.pairs, compared.altered])
    return find_duplicates(facts, compared=compared)


def _readable(table: ImageTable, unreadable: dict[str, str]) -> ImageTable:
    readable = table.take([i for i, path in enumerate(table.paths) if path not in unreadable])
    if len(set(readable.labels)) < min(2, len(table.classes)):
        first = f" (first: {': '.join(next(iter(unreadable.items())))})" if unreadable else ""
        message = f"{len(unreadable)} of {len(table)} images are unreadable"
        left = "no image is left" if len(table.classes) == 1 else table.task.too_few_classes
        raise VitkitError(f"{table.name}: {left}; {message}{first}")
    return readable.compact()


def _set_opposites_apart(links: Sequence[Link], table: ImageTable, facts: Sequence[Facts]) -> tuple[list[Link], int]:
    """Without links from a picture to its mirror image in another class, which is no copy where left and right are
    classes; and how many those were. A link is between contents, of which files in several classes may be copies."""
    labels: dict[bytes, set[int]] = {}
    for fact, label in zip(facts, table.labels, strict=True):
        labels.setdefault(fact.digest, set()).add(label)
    kept = [
        link
        for link in links
        if link.kind != "mirrored" or labels[facts[link.first].digest] & labels[facts[link.second].digest]
    ]
    return kept, len(links) - len(kept)


def _copies(table: ImageTable, links: Sequence[Link], twins: Sequence[int]) -> list[Copies]:
    """Return the groups that the links form."""
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
            is_conflict=len({table.labels[i] for i in images}) > 1,
        )
        for root, images in members.items()
    ]


def _range(values: Sequence[float]) -> dict[str, float]:
    """Least, middle and most."""
    ordered = sorted(values)
    return {"min": ordered[0], "median": ordered[len(ordered) // 2], "max": ordered[-1]}
