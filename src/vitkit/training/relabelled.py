"""Test images whose labels were changed, or that were left out, because a model proposed it.

What is left out would be in the test if nobody had doubted it: it stays there with the label that it had, and nothing
learns from it (docs/decisions/0028-label-files.md).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from pathlib import Path

from vitkit.data.doctor.findings import Finding
from vitkit.data.doctor.scan import scan
from vitkit.data.label_file import Proposal
from vitkit.data.memory import Facts, Memory
from vitkit.data.overlap import find_overlap
from vitkit.data.pictures import DIGEST, PictureRecord, make_record
from vitkit.data.proposals import Earlier, earlier_runs, find_proposals
from vitkit.data.table import ImageTable, table_of
from vitkit.errors import VitkitError
from vitkit.evaluation.metrics import held_out_split
from vitkit.model_folder import RECORD
from vitkit.system.files import read_bytes
from vitkit.system.progress import Progress
from vitkit.text.words import listed, plural
from vitkit.training.architecture import weights_of
from vitkit.training.lineage import Divided, Images, contents_of
from vitkit.training.recipe import Recipe


@dataclass(frozen=True)
class Proposed:
    """What models proposed of the labels of a run's images, before these are split.

    Attributes:
        proposals: the images whose labels were changed, or that are left out.
        facts: what each file holds that is left out, by its path.
        earlier: runs that may have proposed labels.
        digests: the beginning of each file's SHA-256, those that are left out included.
        taught: the record of the runs whose proposals are among the labels now, so that these carry what those runs
            learned; None: of none that is at hand.
        teachers: their names.
        comes_split: the data have splits of their own.
    """

    proposals: tuple[Proposal, ...] = ()
    facts: Mapping[str, Facts] = field(default_factory=dict)
    earlier: tuple[Earlier, ...] = ()
    digests: frozenset[str] = frozenset()
    taught: PictureRecord | None = None
    teachers: tuple[str, ...] = ()
    comes_split: bool = False


def find_proposed(
    images: Images, table: ImageTable, recipe: Recipe, places: Iterable[Path], progress: Progress
) -> Proposed:
    """Look for labels that models proposed.

    Args:
        images: the readable ones.
        table: as they were found, with what their label file says.
        recipe: settled.
        places: folders of runs that may have proposed labels, beside those that the recipe names.
        progress: told how many images are read.
    """
    ancestors = [own for own in (recipe.split_from, weights_of(recipe)) if own is not None]
    earlier = earlier_runs(ancestors, places)
    if not earlier and not table.proposals:
        return Proposed()
    gone = [path for path, _, _ in table.left_out]
    with Memory() as memory:
        read = scan([table.root / path for path in gone], memory, partial(progress, "reading images"))
    facts = {path: own for path, own in zip(gone, read, strict=True) if own.error is None}
    digests = contents_of(images) | {path: own.digest[:DIGEST].hex() for path, own in facts.items()}
    labelled = replace(images.table, left_out=table.left_out, proposals=table.proposals)
    found = find_proposals(labelled, digests, earlier)
    label_of = {path: images.table.cell_of(i) for i, path in enumerate(images.table.paths)}
    followed = [(own, label_of[own.path]) for own in found if own.path in label_of]
    teachers = {own.name: record for own in earlier if _taught(own, followed) and (record := _record_of(own))}
    record = reduce(PictureRecord.merge, teachers.values()) if teachers else None
    comes_split = any(table.splits)
    return Proposed(found, facts, tuple(earlier), frozenset(digests.values()), record, tuple(teachers), comes_split)


def _taught(run: Earlier, followed: Sequence[tuple[Proposal, str]]) -> bool:
    """Whether some labels follow what a run proposed, by the name that they are marked with or by what it suggests."""
    return any(own.by == run.name or run.suggested.get(own.digest, ("", None))[1] == label for own, label in followed)


def _record_of(run: Earlier) -> PictureRecord | None:
    """What a run knows of its pictures; None where that is gone or damaged."""
    try:
        return PictureRecord.from_bytes(read_bytes(run.folder / RECORD), run.folder)
    except (VitkitError, OSError):
        return None


def place_proposals(proposed: Proposed, parts: Sequence[Divided], recipe: Recipe) -> list[Divided]:
    """The images of a run, or of each fold, with what was proposed of them, and with what the reader should know."""
    return [
        replace(
            own,
            proposals=_placed(proposed, own.images, recipe, fold),
            findings=[*own.findings, *_of_teachers(proposed, recipe, own), *_of_gone(proposed, own)],
        )
        for fold, own in enumerate(parts)
    ]


def _of_teachers(proposed: Proposed, recipe: Recipe, own: Divided) -> list[Finding]:
    """That labels carry what earlier runs had learned, and whether that spoils the test."""
    if proposed.taught is None:
        return []
    names, role_of = listed(proposed.teachers), proposed.taught.role_of()
    held_out = held_out_split(own.images.table)
    spoilt = sum(
        split == held_out and role_of.get(fact.digest[:DIGEST]) == "train"
        for fact, split in zip(own.images.facts, own.images.table.splits, strict=True)
    )
    if spoilt:
        text = (
            f"{spoilt} {held_out} images taught {names}, whose proposals are among the labels: what was learned from "
            "their labels is in those of other images now, which flatters"
        )
        return [Finding("problem", text)]
    if recipe.split_from is None and recipe.folds is None and not proposed.comes_split:
        return [Finding("note", f"labels that {names} proposed carry what it had learned, so its split is kept")]
    return []


def _of_gone(proposed: Proposed, own: Divided) -> Iterator[Finding]:
    """That images are deleted of which an earlier run doubted the label: they would be mistakes, as a rule."""
    held_out = held_out_split(own.images.table)
    for run in proposed.earlier:
        if run.is_ancestor and (gone := run.gone(proposed.digests, held_out)):
            images = plural(gone, f"{held_out} image of {run.name} is", f"{held_out} images of {run.name} are")
            yield Finding("warning", f"{images} no longer there, of those whose label it doubted, which flatters")


def _placed(proposed: Proposed, images: Images, recipe: Recipe, fold: int) -> tuple[Proposal, ...]:
    """What was proposed, with the split of each image that is left out: the held-out one, or none."""
    found, facts, earlier = proposed.proposals, proposed.facts, proposed.earlier
    held_out = held_out_split(images.table)
    left = [own for own in found if own.path in facts and _split(own, recipe, earlier, fold, held_out) == held_out]
    if left:
        labels = [images.table.name_of(i) for i in range(len(images.table))]
        record = make_record(images.facts, labels, [own or "test" for own in images.table.splits], is_whole=True)
        rows = table_of(images.table.name, images.table.root, [(own.path, own.before, None) for own in left])
        overlap = find_overlap(record, rows, [facts[own.path] for own in left])
        left = [own for own, role in zip(left, overlap.roles, strict=True) if role in (None, held_out)]
    judged = {own.path for own in left}
    return tuple(own._replace(split=held_out if own.path in judged else None) for own in found)


def _split(own: Proposal, recipe: Recipe, earlier: Sequence[Earlier], fold: int, held_out: str) -> str | None:
    """The split that an image would be in if it were not left out.

    It is that of an earlier run, or that in which the data come; else it is drawn with the share that the split has.
    """
    if recipe.folds is None:
        for run in earlier:
            if run.is_ancestor and own.digest in run.splits:
                return run.splits[own.digest]
            if run.is_ancestor and own.digest in run.proposals:
                return run.proposals[own.digest].split
        if own.split is not None:
            return own.split
    drawn = hashlib.sha256(f"{recipe.seed_of_split} {own.digest}".encode()).digest()
    if recipe.folds is not None:
        return held_out if int.from_bytes(drawn[:8]) % recipe.folds == fold else None
    train, val, test = recipe.split
    share = {"test": test, "val": val}.get(held_out, 0.0) / (train + val + test)
    return held_out if int.from_bytes(drawn[:8]) < share * 2**64 else None
