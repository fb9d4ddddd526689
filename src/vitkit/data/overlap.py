"""Which images of a table are pictures that a record knows, and what follows from that for the split.

Known are the same file under any name, and the same picture resized, recompressed, altered (cropped, captioned,
recoloured and the like) or mirrored (docs/decisions/0009-duplicates.md); a mirror image in another class is not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, get_args

from vitkit.data.doctor.altered import Described
from vitkit.data.doctor.duplicates import Kind, LookedFor, find_known
from vitkit.data.doctor.scan import scan
from vitkit.data.memory import Facts, Memory
from vitkit.data.pictures import DIGEST, ROLES, UNLABELLED, PictureRecord
from vitkit.data.table import ImageTable
from vitkit.system.progress import Progress


@dataclass(frozen=True)
class Overlap:
    """What a record knows of the images of a table, an entry an image.

    Attributes:
        roles: what became of the picture, the most that any of its copies was used for; None: it is not known.
        kinds: how it is known: `exact`, `near`, `altered` or `mirrored`.
        touched: all that became of its copies; of the same file its own role alone.
        relabelled: the images that are known with other labels than they have now.
        looked_for: what copies could be told from other images: not altered ones, or not even near ones, where the
            images are too alike, as from a camera that never moves, or where the record does not hold what it takes.
    """

    roles: tuple[str | None, ...]
    kinds: tuple[Kind | None, ...]
    touched: tuple[frozenset[str], ...]
    relabelled: frozenset[int] = frozenset()
    looked_for: LookedFor = "altered"

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
            frozenset(new for new, i in enumerate(indices) if i in self.relabelled),
            self.looked_for,
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
    looked_for: LookedFor = "altered"
    if rest and len(record) and not record.has_thumbnails:
        looked_for = "exact"
    elif rest and len(record):
        pairs, looked_for = find_known(Described.of([facts[i] for i in rest]), record.described(), progress)
        if looked_for == "altered" and not record.has_keypoints:
            looked_for = "near"
        for number, j, kind in pairs:
            i, role = rest[number], ROLES[record.roles[j]]
            if kind == "mirrored" and record.label_of(j) not in (table.name_of(i), UNLABELLED):
                continue
            touched[i].add(role)
            kinds[i] = min(kind, kinds[i] or kind, key=get_args(Kind).index)
            roles[i] = highest(role, roles[i])
    return Overlap(
        tuple(roles), tuple(kinds), tuple(map(frozenset, touched)), _relabelled(record, table, facts), looked_for
    )


def _relabelled(record: PictureRecord, table: ImageTable, facts: Sequence[Facts]) -> frozenset[int]:
    """The images whose very file the record knows, with other labels."""
    labels: dict[bytes, set[str]] = {}
    for j, digest in enumerate(record.digests):
        labels.setdefault(digest.tobytes(), set()).add(record.label_of(j))
    known = {i: labels[digest] for i, fact in enumerate(facts) if (digest := fact.digest[:DIGEST]) in labels}
    return frozenset(i for i, own in known.items() if not own & {table.name_of(i), UNLABELLED})


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


def read_digests(table: ImageTable, progress: Progress) -> dict[str, str]:
    """The beginning of the SHA-256 of each readable image of a table, and of those that are left out, by its path."""
    paths = [*table.paths, *(path for path, _, _ in table.left_out)]
    with Memory() as memory:
        facts = scan([table.root / path for path in paths], memory, partial(progress, "reading images"))
    return {path: fact.digest[:DIGEST].hex() for path, fact in zip(paths, facts, strict=True) if fact.error is None}


def highest(*roles: str | None) -> str | None:
    """The role that says the most: train before val before test before none."""
    known = [role for role in roles if role is not None]
    return max(known, key=ROLES.index, default=None)


def inherit(overlap: Overlap, groups: Sequence[int]) -> tuple[list[str | None], list[int]]:
    """The split that each known picture had, and the images that belong to two.

    A file that is known keeps its own. A new one goes with its copies, and with its group. One that is known with
    another label is a copy of what it was none of before, perhaps (a mirror image is one within a class alone): where
    its group is in another split it goes there too, but never out of what it was trained on, or chosen by.

    Args:
        overlap: what is known of the images.
        groups: a number for each image; images of one number belong together.

    Returns:
        The split of each image, None where it is free; and the images that belong with pictures of different splits,
        which can be in none.
    """
    fixed, moving, claimed = (_touched_by_group(overlap, groups, own) for own in ("fixed", "moving", "new"))
    kept: list[str | None] = []
    torn = []
    for i, group in enumerate(groups):
        there, role = fixed.get(group, set()), overlap.roles[i]
        claims = there | claimed.get(group, set())
        standing = _standing(overlap, i)
        if standing == "fixed":
            kept.append(role)
            continue
        if not there and group in moving:
            target = highest(*moving[group], *claims)
            is_torn = False
        else:
            target = next(iter(claims if standing == "new" else there), None)
            is_torn = len(claims if standing == "new" else there) > 1 or highest(role, target) != target
        kept.append(None if is_torn else target)
        torn += [i] * is_torn
    return kept, torn


def _standing(overlap: Overlap, index: int) -> Literal["fixed", "moving", "new"]:
    """Whether an image is known and as it was, known with another label, or at most like a picture that is known."""
    if overlap.kinds[index] != "exact":
        return "new"
    return "moving" if index in overlap.relabelled else "fixed"


def _touched_by_group(overlap: Overlap, groups: Sequence[int], standing: str) -> dict[int, set[str]]:
    """All that became of the copies of the images of such a standing, for each group that has one."""
    found: dict[int, set[str]] = {}
    for i, group in enumerate(groups):
        if _standing(overlap, i) == standing:
            found.setdefault(group, set()).update(overlap.touched[i])
    return found


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
