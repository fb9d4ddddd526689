"""Which images of a table are pictures that a record knows, and what follows from that for the split.

Known are the same file under any name, and the same picture resized, recompressed or mirrored
(docs/decisions/0009-duplicates.md); a mirror image in another class is not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from vitkit.data.doctor.duplicates import Kind, find_known
from vitkit.data.doctor.scan import scan
from vitkit.data.memory import Facts, Memory
from vitkit.data.pictures import DIGEST, ROLES, UNLABELLED, PictureRecord
from vitkit.data.sources import ImageTable
from vitkit.system.progress import Progress


@dataclass(frozen=True)
class Overlap:
    """What a record knows of the images of a table, an entry an image.

    Attributes:
        roles: what became of the picture, the most that any of its copies was used for; None: it is not known.
        kinds: how it is known: `exact`, `near` or `mirrored`.
        touched: all that became of its copies; of the same file its own role alone.
        could_tell: near copies were looked for. They are not where the images are too alike, as from a camera that
            never moves, or where the record holds no thumbnails.
    """

    roles: tuple[str | None, ...]
    kinds: tuple[Kind | None, ...]
    touched: tuple[frozenset[str], ...]
    could_tell: bool = True

    @property
    def known(self) -> int:
        return sum(role is not None for role in self.roles)

    def seen(self) -> list[int]:
        """The images that the weights were trained on or chosen by."""
        return [i for i, role in enumerate(self.roles) if role in ("train", "val")]

    def take(self, indices: Sequence[int]) -> Overlap:
        """Of the images at these indices."""
        return Overlap(
            tuple(self.roles[i] for i in indices),
            tuple(self.kinds[i] for i in indices),
            tuple(self.touched[i] for i in indices),
            self.could_tell,
        )


def find_overlap(
    record: PictureRecord,
    table: ImageTable,
    facts: Sequence[Facts],
    progress: Callable[[int, int], None] | None = None,
) -> Overlap:
    """Look for every image of a table in a record.

    Args:
        record: of what weights were trained on.
        table: readable images.
        facts: what each of them holds.
        progress: told how many of how many have been compared.
    """
    role_of = record.role_of()
    roles: list[str | None] = [role_of.get(fact.digest[:DIGEST]) for fact in facts]
    kinds: list[Kind | None] = [None if role is None else "exact" for role in roles]
    touched: list[set[str]] = [set() if role is None else {role} for role in roles]
    rest = [i for i, role in enumerate(roles) if role is None]
    could_tell = not rest or not len(record) or record.has_thumbnails
    if rest and len(record) and could_tell:
        pairs, could_tell = find_known([facts[i].thumbnail for i in rest], record.thumbnails(), progress)
        for number, j, kind in pairs:
            i, role = rest[number], ROLES[record.roles[j]]
            if kind == "mirrored" and record.label_of(j) not in (table.name_of(i), UNLABELLED):
                continue
            touched[i].add(role)
            kinds[i] = "near" if "near" in (kind, kinds[i]) else "mirrored"
            roles[i] = highest(role, roles[i])
    return Overlap(tuple(roles), tuple(kinds), tuple(map(frozenset, touched)), could_tell)


def look_up(record: PictureRecord, table: ImageTable, progress: Progress) -> tuple[ImageTable, Overlap]:
    """The readable images of a table, and what a record says of each.

    Args:
        record: of what weights were trained on.
        table: images, which are read if they have not been before.
        progress: told what is being done, how many are done, of how many.
    """
    with Memory() as memory:
        facts = scan([table.file(i) for i in range(len(table))], memory, partial(progress, "reading images"))
    readable = [i for i, fact in enumerate(facts) if fact.error is None]
    rows = table.take(readable)
    return rows, find_overlap(record, rows, [facts[i] for i in readable], partial(progress, "comparing images"))


def highest(*roles: str | None) -> str | None:
    """The role that says the most: train before val before test before none."""
    known = [role for role in roles if role is not None]
    return max(known, key=ROLES.index, default=None)


def inherit(overlap: Overlap, groups: Sequence[int]) -> tuple[list[str | None], list[int]]:
    """The split that each known picture had, and the images that belong to two.

    A file that is known keeps its own. A new one goes with its copies, and with its group.

    Args:
        overlap: what is known of the images.
        groups: a number for each image; images of one number belong together.

    Returns:
        The split of each image, None where it is free; and the new images that belong with pictures of different
        splits, which can be in none.
    """
    claims: dict[int, set[str]] = {}
    for group, touched in zip(groups, overlap.touched, strict=True):
        claims.setdefault(group, set()).update(touched)
    kept: list[str | None] = []
    torn = []
    for i, group in enumerate(groups):
        if overlap.kinds[i] == "exact":
            kept.append(overlap.roles[i])
        elif len(claims[group]) > 1:
            kept.append(None)
            torn.append(i)
        else:
            kept.append(next(iter(claims[group]), None))
    return kept, torn


def exposures(table: ImageTable, twins: Sequence[int], overlap: Overlap | None) -> list[str]:
    """What training on a split table lets weights know of each image: the most of its own split, of that of its
    copies, and of what the weights knew before.

    Args:
        table: every image has a split.
        twins: a number for each image, the same for copies of one picture.
        overlap: with what the weights knew before training; None: nothing.
    """
    most: dict[int, str | None] = {}
    for group, split in zip(twins, table.splits, strict=True):
        most[group] = highest(most.get(group), split)
    before = overlap.roles if overlap is not None else (None,) * len(table)
    return [highest(most[group], own) or "test" for group, own in zip(twins, before, strict=True)]
