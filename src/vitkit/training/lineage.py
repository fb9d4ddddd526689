"""Determine which images the initial weights of a run have seen, and split the images accordingly.

The model cannot be tested on an image that the initial weights were trained on, because the weights know its label
(docs/decisions/0013-what-weights-have-seen.md). `divide` assigns the splits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial, reduce
from pathlib import Path

from vitkit.data.doctor.examine import Diagnosis, Finding, find_twins
from vitkit.data.earlier_labels import UNCHANGED, LabelsBefore
from vitkit.data.file_facts import FactTable
from vitkit.data.seen import DIGEST, Overlap, PictureRecord, exposures, find_overlap, inherit, make_record
from vitkit.data.splits import SPLITS, scenes, split
from vitkit.data.table import UNLABELLED, ImageTable
from vitkit.errors import VitkitError
from vitkit.model_folder import RECORD
from vitkit.system.files import read_bytes, without_place
from vitkit.system.progress import progress
from vitkit.system.run_files import SPLIT, fold_folder
from vitkit.text.cells import listed, plural
from vitkit.training.defaults import weights_of
from vitkit.training.recipe import Recipe
from vitkit.weights import inspect

_MOST_RUNS = 10
_FLATTERED = {"test": "inflates results; a second figure leaves them out", "val": "biases the selection"}


@dataclass(frozen=True)
class RunImages:
    """The readable images of a run, with the results of the data check (`data.doctor`).

    Attributes:
        table: the readable images.
        facts: the content digest and the fingerprints of each file.
        groups: a number for each image; images with the same number are assigned to the same split. They are copies of
            one picture, or images of one scene.
    """

    table: ImageTable
    facts: FactTable
    groups: tuple[int, ...]

    @classmethod
    def of(cls, diagnosis: Diagnosis, groups: Sequence[int] | None = None) -> RunImages:
        """Build the images from the result of the data check. Without `groups`, copies of one picture form a group."""
        return cls(diagnosis.table, diagnosis.facts, tuple(diagnosis.twins if groups is None else groups))

    @cached_property
    def contents(self) -> dict[str, str]:
        """Return the first bytes of each image file's SHA-256 digest in hexadecimal, by path.

        The digests identify the images if their files are moved.
        """
        digests = self.facts.column("digest")
        return {path: digest[:DIGEST].hex() for path, digest in zip(self.table.paths, digests, strict=True)}

    def take(self, indices: Sequence[int]) -> RunImages:
        """Return the images at these indices."""
        groups = tuple(self.groups[i] for i in indices)
        return RunImages(self.table.take(list(indices)).compact(), self.facts.take(indices), groups)


@dataclass(frozen=True)
class SplitImages:
    """Images that have been split.

    Attributes:
        images: the images; their table has the splits.
        overlap: for each image, whether and in which role the initial weights had seen it.
        findings: notes on the split for the user.
        earlier: the labels that the images had in earlier runs, and the missing test images of these runs.
    """

    images: RunImages
    overlap: Overlap
    findings: list[Finding] = field(default_factory=list)
    earlier: LabelsBefore = UNCHANGED

    def without(self, dropped: Collection[int]) -> SplitImages:
        """Return a copy without the images at these indices."""
        if not dropped:
            return self
        rest = [i for i in range(len(self.images.table)) if i not in dropped]
        return replace(self, images=self.images.take(rest), overlap=self.overlap.take(rest))


def ancestry_of(recipe: Recipe, weights: bytes | None, teacher: bytes | None) -> PictureRecord:
    """Merge the records of the images that the initial weights and the teacher were trained on.

    If a record is missing, the result is marked as incomplete.

    Args:
        recipe: the resolved recipe.
        weights: the stored record of the weights; None if there is none.
        teacher: the stored record of the teacher; None if there is none.
    """
    records = list[PictureRecord]()
    if recipe.weights != "none":
        records.append(_decode(weights, weights_of(recipe)))
    if recipe.teacher is not None:
        records.append(_decode(teacher, recipe.teacher))
    return reduce(PictureRecord.merge, records) if records else make_record([], [], [], is_whole=True)


def _decode(pictures: bytes | None, source: str) -> PictureRecord:
    return make_record([], [], [], is_whole=False) if pictures is None else PictureRecord.from_bytes(pictures, source)


def record_of_run(run: str) -> PictureRecord:
    """Read the record of the images of an earlier run or of a model, given as the recipe field `split_from`.

    Raises:
        VitkitError: there is no such run, it is a cross-validation, or it has no record.
    """
    if (fold_folder(Path(run), 0) / SPLIT).is_file():
        raise VitkitError(
            f"split_from {run}: it is a cross-validation; use one of its folds, {fold_folder(Path(run), 0)}"
        )
    record = Path(run) / RECORD
    pictures = read_bytes(record) if record.is_file() else inspect(run).pictures
    if pictures is None:
        raise VitkitError(f"split_from {run}: it has no record of its pictures ({RECORD}); use a run of `vitkit train`")
    return PictureRecord.from_bytes(pictures, run)


def divide(
    images: RunImages,
    recipe: Recipe,
    before: PictureRecord,
    untested: Collection[str] = (),
) -> SplitImages:
    """Assign a split to every image.

    Images that an earlier run has used keep the split that they had there. The earlier run is `recipe.split_from` or,
    if it is not set, the runs that trained the initial weights.

    All other images get a new split. New or relabelled images are left out if their copies or their group are in
    different splits of the earlier run.

    Args:
        images: the readable images.
        recipe: the resolved recipe.
        before: the record of the images that the initial weights and the teacher were trained on.
        untested: the paths of images whose labels only a model has given. They are training images, or left out.

    Raises:
        VitkitError: `split_from` is not a run, or there is no image left to train on.
    """
    overlap = _compare(images, before, "weights")
    kept_of, source = None, ""
    if recipe.split_from is not None:
        record, source = record_of_run(recipe.split_from), without_place(recipe.split_from)
        kept_of = _compare(images, record, "run")
    elif overlap.seen():
        kept_of, source = overlap, _source(recipe)
    kept: list[str | None] = [None] * len(images.table)
    conflicting, findings = list[int](), list[Finding]()
    if kept_of is not None:
        kept, conflicting = inherit(kept_of, images.groups)
        findings = [
            *_conflict_findings(images.table, conflicting, source),
            *_moved_findings(images.table, kept_of, kept, source),
        ]
    kept, dropped = only_trained(images, kept, untested)
    if dropped:
        text = "labelled by a model alone left out, because they are copies of test images, or in a test folder"
        findings.append(Finding("note", f"{plural(len(dropped), 'image', 'images')} {text}"))
    if conflicting or dropped:
        rest = sorted(set(range(len(kept))) - {*conflicting, *dropped})
        images, kept = images.take(rest), [kept[i] for i in rest]
        # A removed image may have linked two others, so the groups are sought again.
        twins = find_twins(images.table, images.facts)
        images = replace(images, groups=tuple(scenes(images.table, recipe.group_by, twins)))
        overlap = overlap.take(rest)
    table = split(images.table, recipe.split, recipe.seed_of_split, images.groups, kept)
    if kept_of is not None:
        findings += _kept_findings(images.table, table, kept, images.groups, source)
    if "train" not in table.splits:
        raise VitkitError(
            f"every picture of {table.name} was held out by {source}, so there is nothing to train on: add photographs"
        )
    return SplitImages(replace(images, table=table), overlap, findings)


def only_trained(
    images: RunImages, kept: Sequence[str | None], untested: Collection[str]
) -> tuple[list[str | None], list[int]]:
    """Let images that no person has labelled, and the images of their groups, be training images.

    Args:
        images: the images, some of which may have a split.
        kept: the split of each image in an earlier run, or None.
        untested: the paths of the images that no person has labelled.

    Returns:
        The new `kept`, and the indices of images that must be left out, because their group is in another split.
    """
    chosen = [i for i, path in enumerate(images.table.paths) if path in untested]
    splits = [own or other for own, other in zip(images.table.splits, kept, strict=True)]
    held_out = {group for group, name in zip(images.groups, splits, strict=True) if name in ("val", "test")}
    trained = {images.groups[i] for i in chosen} - held_out
    rows = zip(images.groups, kept, strict=True)
    return ["train" if name is None and group in trained else name for group, name in rows], [
        i for i in chosen if images.groups[i] in held_out
    ]


def refuse_seen(images: RunImages, recipe: Recipe, before: PictureRecord, what: str) -> Overlap:
    """Refuse a test of every image if the initial weights or the teacher were trained or selected on some of them.

    `what` names the option or the run that demands the test.

    Returns:
        The overlap of the images with the record `before`. The role of each image in the record is `test`, or None if
        the image is not in the record.

    Raises:
        VitkitError: the weights or the teacher were trained or selected on some of the images.
    """
    overlap = _compare(images, before, "weights")
    if seen := len(overlap.seen()):
        raise VitkitError(
            f"{what} tests every picture, but {_source(recipe)} has seen {seen} of the {len(images.table)} pictures: "
            f"use other --weights, such as those from which that training started, or do without {what}"
        )
    return overlap


def _compare(images: RunImages, record: PictureRecord, whose: str) -> Overlap:
    return find_overlap(record, images.table, images.facts, partial(progress, f"comparing with {whose}"))


def record_after(split_images: SplitImages, before: PictureRecord, *, has_labels: bool = True) -> PictureRecord:
    """Return the record of the images that the weights have seen after a run.

    Args:
        split_images: the images of the run.
        before: the record of the images that the weights had seen before the run.
        has_labels: whether the run learns the labels of the images.
    """
    images = split_images.images
    labels = [images.table.name_of(i) if has_labels else UNLABELLED for i in range(len(images.table))]
    roles = exposures(images.table, images.groups, split_images.overlap)
    return before.merge(make_record(images.facts, labels, roles, is_whole=True))


def _source(recipe: Recipe) -> str:
    """Return the name of the initial weights, or of the teacher if the weights are random, without the folder."""
    return without_place(weights_of(recipe) if recipe.weights != "none" else str(recipe.teacher))


# --- Messages --------------------------------------------------------------------------------------------------


def ancestry_findings(split_images: SplitImages, recipe: Recipe) -> list[Finding]:
    """Report the held-out images that the initial weights had seen.

    Also report if copies of images that the weights had seen may have been missed.
    """
    table, overlap = split_images.images.table, split_images.overlap
    source, all_seen, findings = _source(recipe), overlap.seen(), list[Finding]()
    for name in ("test", "val"):
        seen = [i for i in all_seen if table.splits[i] == name and (name == "test" or overlap.roles[i] == "train")]
        if seen:
            images = sum(split == name for split in table.splits)
            findings.append(
                Finding(
                    "problem",
                    f"{source} had seen {len(seen)} of the {images} {name} images, which {_FLATTERED[name]}: "
                    f"{listed([table.paths[i] for i in seen])}",
                    is_settled=True,
                )
            )
    if all_seen and "test" not in table.splits:
        findings.append(Finding("problem", f"{source} had seen so many images that none is left for the test"))
    elif all_seen and not findings:
        findings.append(
            Finding(
                "note",
                f"{source} had seen {len(all_seen)} of these {len(table)} images, none of them held out here",
            )
        )
    if overlap.looked_for == "exact":
        text = "the images are too similar to each other to recognise near copies of images that the weights had seen"
        findings.append(Finding("warning", f"{text}; only identical files were searched for"))
    elif overlap.looked_for == "near":
        text = (
            "altered copies (cropped, captioned, recoloured) of images that the weights had seen were not searched for"
        )
        findings.append(Finding("warning", f"{text}; identical, resized, recompressed and mirrored copies were"))
    return findings


def _kept_findings(
    before: ImageTable, after: ImageTable, kept: Sequence[str | None], groups: Sequence[int], source: str
) -> list[Finding]:
    known = Counter(
        name
        for name, was, before_split in zip(after.splits, kept, before.splits, strict=True)
        if before_split is None and name == was
    )
    if not known:
        return []
    parts = ", ".join(f"{known[name]} {name}" for name in SPLITS)
    new = len(after) - known.total()
    text = (
        f"{known.total()} of {len(after)} images are known from {source} and keep their split ({parts}); {new} are new"
    )
    sides: dict[int, set[str | None]] = {}
    for group, name in zip(groups, after.splits, strict=True):
        sides.setdefault(group, set()).add(name)
    findings = [Finding("note", text)]
    if count := sum(len(names) > 1 for names in sides.values()):
        findings.append(
            Finding(
                "problem",
                f"{count} {'picture is' if count == 1 else 'pictures are'} in two splits of {source}",
                is_settled=True,
            )
        )
    return findings


def _conflict_findings(table: ImageTable, indices: Sequence[int], source: str) -> list[Finding]:
    if not indices:
        return []
    are = "image is a copy" if len(indices) == 1 else "images are copies"
    paths = ", ".join(table.paths[i] for i in indices)
    text = f"{len(indices)} new or relabelled {are} of pictures in different splits of {source} and left out: {paths}"
    return [Finding("warning", text)]


def _moved_findings(table: ImageTable, overlap: Overlap, kept: Sequence[str | None], source: str) -> list[Finding]:
    moved = [i for i in overlap.relabelled if kept[i] not in (None, overlap.roles[i])]
    if not moved:
        return []
    are = "relabelled image is now a copy" if len(moved) == 1 else "relabelled images are now copies"
    paths = listed([table.paths[i] for i in sorted(moved)])
    return [Finding("note", f"{len(moved)} {are} of pictures in another split of {source}, and with them: {paths}")]


def note_shared_tests(out: str | Path | None, split_images: SplitImages) -> str | None:
    """Return a note if this run trains on images that were test images of earlier runs, else None.

    Only the latest runs in the parent folder of this run are considered, at most `_MOST_RUNS`.

    Args:
        out: the run folder; None for the default folder.
        split_images: the images of this run.
    """
    parent = Path("runs") if out is None else Path(out).parent
    images = split_images.images
    folders = sorted(parent.glob(f"*/{RECORD}"), key=lambda path: path.stat().st_mtime, reverse=True)
    shared = []
    digests = zip(images.facts.column("digest"), images.table.splits, strict=True) if folders else ()
    trained = {digest[:DIGEST] for digest, split in digests if split == "train"}
    for file in folders[:_MOST_RUNS]:
        if out is not None and file.parent.resolve() == Path(out).resolve():
            continue
        try:
            roles = PictureRecord.from_bytes(read_bytes(file), file).role_of()
        except (VitkitError, OSError):
            continue
        tests = {digest for digest, role in roles.items() if role == "test"}
        if common := len(tests & trained):
            shared.append((file.parent, common, len(tests)))
    if not shared:
        return None
    run, common, tests_of = shared[0]
    more = f", and of {len(shared) - 1} more runs there" if len(shared) > 1 else ""
    return (
        f"note: the split is new and trains on {common} of the {tests_of} test images of {run}{more}, so their "
        f"figures are for different images; --split-from {run} keeps its split"
    )
