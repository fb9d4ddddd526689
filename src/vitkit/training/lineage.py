"""What the weights that a run begins from have seen of its pictures, and the split that follows from it.

Weights that were trained on a picture know its label, so it can test nothing that begins from them
(docs/decisions/0013-what-weights-have-seen.md).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from vitkit.data.doctor.examine import Diagnosis, find_twins
from vitkit.data.doctor.findings import Finding
from vitkit.data.file_facts import Facts
from vitkit.data.labels import Proposal
from vitkit.data.seen import DIGEST, Overlap, PictureRecord, exposures, find_overlap, inherit, make_record
from vitkit.data.splits import SPLITS, scenes, split
from vitkit.data.table import UNLABELLED, ImageTable
from vitkit.errors import VitkitError
from vitkit.model_folder import RECORD
from vitkit.system.files import read_bytes, without_place
from vitkit.system.progress import Progress
from vitkit.system.run_files import SPLIT, fold_folder
from vitkit.text.cells import listed
from vitkit.training.architecture import weights_of
from vitkit.training.recipe import Recipe
from vitkit.weights import inspect

_MOST_RUNS = 10
_FLATTERED = {"test": "flatters results; a second figure leaves them out", "val": "flatters the choice by them"}


@dataclass(frozen=True)
class Images:
    """The images of a run, and what is known of each.

    Attributes:
        table: the readable ones.
        facts: what each file holds.
        twins: a number for each image, the same for copies of one picture.
        groups: the same for those that stay in one split.
    """

    table: ImageTable
    facts: tuple[Facts, ...]
    twins: tuple[int, ...]
    groups: tuple[int, ...]

    @classmethod
    def of(cls, diagnosis: Diagnosis, groups: Sequence[int] | None = None) -> Images:
        """What the doctor has read; copies alone stay together unless there are other groups."""
        twins = diagnosis.twins
        return cls(diagnosis.table, diagnosis.facts, twins, twins if groups is None else tuple(groups))

    def take(self, indices: Sequence[int]) -> Images:
        """The images at these indices."""
        facts, twins, groups = (tuple(own[i] for i in indices) for own in (self.facts, self.twins, self.groups))
        return Images(self.table.take(list(indices)).compact(), facts, twins, groups)  # type: ignore[arg-type]


@dataclass(frozen=True)
class SplitImages:
    """Images with a split each, and what it took.

    Attributes:
        images: whose table is split.
        overlap: with what the weights had seen.
        findings: what the user should know.
        proposals: images whose labels were changed, or that are left out, because a model proposed it.
    """

    images: Images
    overlap: Overlap
    findings: list[Finding] = field(default_factory=list)
    proposals: tuple[Proposal, ...] = ()


def ancestry_of(recipe: Recipe, weights: bytes | None, teacher: bytes | None) -> PictureRecord:
    """The record of all that the weights of a recipe, and its teacher, were trained on.

    Args:
        recipe: with nothing left open.
        weights: the record of the weights, where they have one.
        teacher: the record of the teacher, where it has one.
    """
    whole = make_record([], [], [], is_whole=True)
    if recipe.weights != "none":
        whole = whole.merge(_decode(weights, weights_of(recipe)))
    if recipe.teacher is not None:
        whole = whole.merge(_decode(teacher, recipe.teacher))
    return whole


def _decode(pictures: bytes | None, source: str) -> PictureRecord:
    return make_record([], [], [], is_whole=False) if pictures is None else PictureRecord.from_bytes(pictures, source)


def record_of_run(run: str, progress: Progress) -> PictureRecord:
    """The record of a run or model whose split is to be kept.

    Raises:
        VitkitError: there is no such run, or it has no record.
    """
    if (fold_folder(Path(run), 0) / SPLIT).is_file():
        raise VitkitError(
            f"split_from {run}: it is a cross-validation; name one of its folds, {fold_folder(Path(run), 0)}"
        )
    own = Path(run) / RECORD
    pictures = read_bytes(own) if own.is_file() else inspect(run, progress=progress).pictures
    if pictures is None:
        raise VitkitError(f"split_from {run}: it has no record of its pictures ({RECORD}): name a run of vitkit's")
    return PictureRecord.from_bytes(pictures, run)


def divide(
    images: Images,
    recipe: Recipe,
    before: PictureRecord,
    progress: Progress,
    proposers: tuple[PictureRecord | None, Sequence[str]] = (None, ()),
) -> SplitImages:
    """Give every image its split: that of `recipe.split_from`, or of the run that the weights are of, or a new one.

    Args:
        images: the readable ones.
        recipe: settled.
        before: what the weights were trained on.
        progress: told how many images have been compared.
        proposers: the record of the runs that proposed some of the labels, which carry what those had learned, and
            their names: their split is kept, as that of the run that the weights are of.

    Raises:
        VitkitError: `split_from` names no run, or nothing is left to train on.
    """
    overlap = _compare(images, before, "weights", progress)
    kept_of, source = None, _source(recipe)
    if recipe.split_from is not None:
        record, source = record_of_run(recipe.split_from, progress), without_place(recipe.split_from)
        kept_of = _compare(images, record, "run", progress)
    elif proposers[0] is not None:
        known, named = before.merge(proposers[0]), proposers[1]
        kept_of, source = (
            _compare(images, known, "runs", progress),
            listed([*named, *([source] if len(before) else [])]),
        )
    elif overlap.seen():
        kept_of = overlap
    if kept_of is None:
        table = split(images.table, recipe.split, recipe.seed_of_split, images.groups)
        return SplitImages(replace(images, table=table), overlap)
    kept, torn = inherit(kept_of, images.groups)
    findings = [*_of_torn(images.table, torn, source), *_of_moved(images.table, kept_of, kept, source)]
    if torn:
        rest = sorted(set(range(len(kept))) - set(torn))
        images, kept = _regrouped(images.take(rest), recipe), [kept[i] for i in rest]
        overlap, kept_of = overlap.take(rest), kept_of.take(rest)
    table = split(images.table, recipe.split, recipe.seed_of_split, images.groups, kept)
    findings += _of_kept(images.table, table, kept, images.groups, source)
    if "train" not in table.splits:
        raise VitkitError(
            f"every picture of {table.name} was held out by {source}, so there is nothing to train on: add photographs"
        )
    return SplitImages(replace(images, table=table), overlap, findings)


def _regrouped(images: Images, recipe: Recipe) -> Images:
    """Without images that are gone others may be copies no more: what is in a test split had not been trained on."""
    twins = find_twins(images.table, images.facts)
    groups = twins if recipe.group_by is None else tuple(scenes(images.table, recipe.group_by, twins))
    return replace(images, twins=twins, groups=groups)


def refuse_folds(images: Images, recipe: Recipe, before: PictureRecord, progress: Progress) -> Overlap:
    """What the weights know of images that are to be cross-validated: nothing, or that is no test of them.

    Raises:
        VitkitError: they were trained on some.
    """
    overlap = _compare(images, before, "weights", progress)
    if seen := len(overlap.seen()):
        raise VitkitError(
            f"--folds tests every picture, and {_source(recipe)} has seen {seen} of these {len(images.table)}: name "
            "other --weights, such as those that it began from, or leave out --folds to keep its split"
        )
    return overlap


def _compare(images: Images, record: PictureRecord, whose: str, progress: Progress) -> Overlap:
    return find_overlap(record, images.table, images.facts, partial(progress, f"comparing with {whose}"))


def record_after(divided: SplitImages, before: PictureRecord, *, has_labels: bool = True) -> PictureRecord:
    """The record of weights after a run, which learned the images' labels or never saw them."""
    images = divided.images
    labels = [images.table.name_of(i) if has_labels else UNLABELLED for i in range(len(images.table))]
    roles = exposures(images.table, images.twins, divided.overlap)
    return before.merge(make_record(images.facts, labels, roles, is_whole=True))


def contents_of(images: Images) -> dict[str, str]:
    """The beginning of each file's SHA-256 by its path, so that it is found again under another."""
    return {path: fact.digest[:DIGEST].hex() for path, fact in zip(images.table.paths, images.facts, strict=True)}


def _source(recipe: Recipe) -> str:
    """Who knows pictures before the run begins, as others may read it."""
    return without_place(weights_of(recipe) if recipe.weights != "none" else str(recipe.teacher))


# --- In words --------------------------------------------------------------------------------------------------


def of_ancestry(divided: SplitImages, recipe: Recipe) -> list[Finding]:
    """What the weights had seen of the images, and whether that spoils the test."""
    table, overlap = divided.images.table, divided.overlap
    source, found = _source(recipe), []
    for name in ("test", "val"):
        own = [i for i in overlap.seen() if table.splits[i] == name and (name == "test" or overlap.roles[i] == "train")]
        if own:
            images = sum(split == name for split in table.splits)
            found.append(
                Finding(
                    "problem",
                    f"{source} had seen {len(own)} of the {images} {name} images, which {_FLATTERED[name]}: "
                    f"{listed([table.paths[i] for i in own])}",
                )
            )
    if overlap.seen() and "test" not in table.splits:
        found.append(Finding("problem", f"{source} had seen too much: no image is left to test on"))
    elif overlap.seen() and not found:
        found.append(
            Finding(
                "note",
                f"{source} had seen {len(overlap.seen())} of these {len(table)} images, none of them held out here",
            )
        )
    if overlap.looked_for == "exact":
        text = "the images are too alike to be told from near copies of what the weights had seen"
        found.append(Finding("warning", f"{text}; only files that are the same were looked for"))
    elif overlap.looked_for == "near":
        text = "altered copies (cropped, captioned, recoloured) of what the weights had seen could not be looked for"
        found.append(Finding("warning", f"{text}; the same files, and resized, recompressed or mirrored ones, were"))
    return found


def _of_kept(
    before: ImageTable, after: ImageTable, kept: Sequence[str | None], groups: Sequence[int], source: str
) -> list[Finding]:
    own = Counter(
        name
        for name, was, given in zip(after.splits, kept, before.splits, strict=True)
        if given is None and name == was
    )
    if not own:
        return []
    parts = ", ".join(f"{own[name]} {name}" for name in SPLITS)
    new = len(after) - own.total()
    text = f"{own.total()} of {len(after)} images are known from {source} and keep their split ({parts}); {new} are new"
    sides: dict[int, set[str | None]] = {}
    for group, name in zip(groups, after.splits, strict=True):
        sides.setdefault(group, set()).add(name)
    found = [Finding("note", text)]
    if torn := sum(len(names) > 1 for names in sides.values()):
        found.append(
            Finding("problem", f"{torn} {'picture is' if torn == 1 else 'pictures are'} in two splits of {source}")
        )
    return found


def _of_torn(table: ImageTable, torn: Sequence[int], source: str) -> list[Finding]:
    if not torn:
        return []
    are = "image is a copy" if len(torn) == 1 else "images are copies"
    named = ", ".join(table.paths[i] for i in torn)
    text = f"{len(torn)} new or relabelled {are} of pictures in different splits of {source} and left out: {named}"
    return [Finding("warning", text)]


def _of_moved(table: ImageTable, overlap: Overlap, kept: Sequence[str | None], source: str) -> list[Finding]:
    moved = [i for i in overlap.relabelled if kept[i] not in (None, overlap.roles[i])]
    if not moved:
        return []
    are = "relabelled image is now a copy" if len(moved) == 1 else "relabelled images are now copies"
    named = listed([table.paths[i] for i in sorted(moved)])
    return [Finding("note", f"{len(moved)} {are} of pictures in another split of {source}, and with them: {named}")]


def of_earlier_runs(out: str | Path | None, divided: SplitImages) -> str | None:
    """A line on the runs beside this one whose test images it trains on; None where there are none."""
    parent = Path("runs") if out is None else Path(out).parent
    trained = {
        fact.digest[:DIGEST]
        for fact, name in zip(divided.images.facts, divided.images.table.splits, strict=True)
        if name == "train"
    }
    folders = sorted(parent.glob(f"*/{RECORD}"), key=lambda path: path.stat().st_mtime, reverse=True)
    told = []
    for file in folders[:_MOST_RUNS]:
        if out is not None and file.parent.resolve() == Path(out).resolve():
            continue
        try:
            roles = PictureRecord.from_bytes(read_bytes(file), file).role_of()
        except (VitkitError, OSError):
            continue
        tests = {digest for digest, role in roles.items() if role == "test"}
        if common := len(tests & trained):
            told.append((file.parent, common, len(tests)))
    if not told:
        return None
    run, common, tests_of = told[0]
    more = f", and of {len(told) - 1} more runs there" if len(told) > 1 else ""
    return (
        f"note: the split is drawn anew and trains on {common} of the {tests_of} test images of {run}{more}, so their "
        f"figures are not of the same images; --split-from {run} keeps its split"
    )
