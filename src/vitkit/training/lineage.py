"""Determine which images the initial weights of a run have seen, and split the images accordingly.

The model cannot be tested on an image that the initial weights were trained on, because the weights know its label
(docs/decisions/0013-what-weights-have-seen.md). `assign_splits` assigns the splits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial, reduce
from pathlib import Path

from vitkit.data.doctor.examine import Finding, find_twins
from vitkit.data.earlier_labels import UNCHANGED, ChangesSinceRuns
from vitkit.data.file_facts import FactTable
from vitkit.data.seen import (
    DIGEST,
    Overlap,
    PictureRecord,
    find_overlap,
    inherit_splits,
    make_record,
)
from vitkit.data.splits import SPLITS, merge_by_scene, split
from vitkit.data.table import ImageTable
from vitkit.errors import VitkitError
from vitkit.model_folder import RECORD
from vitkit.system.files import public_path, read_bytes
from vitkit.system.progress import progress
from vitkit.system.run_files import SPLIT, fold_folder
from vitkit.text.cells import listed, plural
from vitkit.training.defaults import weights_of
from vitkit.training.recipe import Recipe
from vitkit.weights import inspect

_EFFECTS = {"test": "inflates results; a second figure leaves them out", "val": "biases the selection"}


@dataclass(frozen=True)
class RunImages:
    """The readable images of a run, with the results of the data check (`data.doctor`).

    Copies of one picture, and images of one scene, have the same group number, and are assigned to the same split.
    """

    table: ImageTable
    facts: FactTable  # the content digest and the fingerprints of each file
    groups: tuple[int, ...]  # the group number of each image

    @cached_property
    def contents(self) -> dict[str, str]:
        """Return the first bytes of each file's SHA-256 in hexadecimal, by path. They identify a file that is moved."""
        digests = self.facts.column("digest")
        return {path: digest[:DIGEST].hex() for path, digest in zip(self.table.paths, digests, strict=True)}

    def take(self, indices: Sequence[int]) -> RunImages:
        groups = tuple(self.groups[i] for i in indices)
        return RunImages(self.table.take(list(indices)).compact(), self.facts.take(indices), groups)


@dataclass(frozen=True)
class SplitImages:
    """Images that have been split."""

    images: RunImages  # their table has the splits
    overlap: Overlap  # for each image, whether and in which role the initial weights had seen it
    findings: list[Finding] = field(default_factory=list)  # notes on the split for the user
    earlier: ChangesSinceRuns = UNCHANGED  # the labels of images in earlier runs, and the missing test images

    def take(self, indices: Sequence[int]) -> SplitImages:
        return replace(self, images=self.images.take(indices), overlap=self.overlap.take(indices))


def ancestry_of(recipe: Recipe, weights: bytes | None, teacher: bytes | None) -> PictureRecord:
    """Merge the records of the images that the initial weights and the teacher were trained on.

    `weights` and `teacher` are the stored records. If one of them is missing, the result is marked as incomplete.
    """

    def read(stored: bytes | None, source: str) -> PictureRecord:
        if stored is None:
            return make_record([], [], [], is_whole=False)
        return PictureRecord.from_bytes(stored, source)

    records = []
    if recipe.weights != "none":
        records.append(read(weights, weights_of(recipe)))
    if recipe.teacher is not None:
        records.append(read(teacher, recipe.teacher))
    return reduce(PictureRecord.merge, records) if records else make_record([], [], [], is_whole=True)


def record_of_run(run: str) -> PictureRecord:
    """Read the record of the images of an earlier run or of a model. `run` is the recipe field `split_from`."""
    fold = fold_folder(Path(run), 0)
    if (fold / SPLIT).is_file():
        message = f"split_from {run}: it is a cross-validation; use one of its folds, {fold}"
        raise VitkitError("training.split-unavailable", message)
    record = Path(run) / RECORD
    pictures = read_bytes(record) if record.is_file() else inspect(run).pictures
    if pictures is None:
        message = f"split_from {run}: it has no record of its pictures ({RECORD}); use a run of `vitkit train`"
        raise VitkitError("training.split-unavailable", message)
    return PictureRecord.from_bytes(pictures, run)


def assign_splits(
    images: RunImages, recipe: Recipe, seen_before: PictureRecord, untested: Collection[str] = ()
) -> SplitImages:
    """Assign a split to every readable image.

    Images that an earlier run has used keep the split that they had there. The earlier run is `recipe.split_from` or,
    if it is not set, the runs that trained the initial weights. All other images get a new split. New or relabelled
    images are left out if their copies or their group are in different splits of the earlier run.

    Args:
        images: the readable images.
        recipe: the resolved recipe.
        seen_before: the record of the images that the initial weights and the teacher were trained on.
        untested: the paths of images that only a model has labelled. They become training images, or are left out.
    """
    overlap = _compare(images, seen_before, "weights")
    in_run, source = None, ""  # the overlap with the earlier run, and the name of the run
    if recipe.split_from is not None:
        record, source = record_of_run(recipe.split_from), public_path(recipe.split_from)
        in_run = _compare(images, record, "run")
    elif overlap.seen():
        in_run, source = overlap, _source(recipe)

    inherited: list[str | None] = [None] * len(images.table)  # the split of each image in the earlier run
    conflicting, findings = list[int](), list[Finding]()
    if in_run is not None:
        inherited, conflicting = inherit_splits(in_run, images.groups)
        findings += _inheritance_findings(images.table, in_run, inherited, conflicting, source)
    inherited, untestable = move_to_training(images, inherited, untested)
    if untestable:
        text = "labelled by a model alone left out, because they are copies of test images, or in a test folder"
        findings.append(Finding("note", f"{plural(len(untestable), 'image', 'images')} {text}"))

    left_out = {*conflicting, *untestable}
    if left_out:
        rest = [i for i in range(len(images.table)) if i not in left_out]
        images, overlap = images.take(rest), overlap.take(rest)
        inherited = [inherited[i] for i in rest]
        # A removed image may have linked two others, so the groups are sought again.
        twins = find_twins(images.table, images.facts)
        images = replace(images, groups=tuple(merge_by_scene(images.table, recipe.group_by, twins)))
    table = split(images.table, recipe.split, recipe.seed_of_split, images.groups, inherited)
    if in_run is not None:
        findings += _split_findings(images, table, inherited, source)
    if "train" not in table.splits:
        raise VitkitError(
            "training.images-missing",
            f"every picture of {table.name} was held out by {source}, so there is nothing to train on: add photographs",
        )
    return SplitImages(replace(images, table=table), overlap, findings)


def move_to_training(
    images: RunImages, inherited: Sequence[str | None], untested: Collection[str]
) -> tuple[list[str | None], list[int]]:
    """Make images that no person has labelled (`untested`, by path), and those of their groups, training images.

    `inherited` is the split of each image in an earlier run, or None. Return these splits with the changes, and the
    indices of images that must be left out, because their group is in another split.
    """
    held_out_groups = set[int]()
    for group, given, earlier in zip(images.groups, images.table.splits, inherited, strict=True):
        if (given or earlier) in ("val", "test"):
            held_out_groups.add(group)
    rows = [i for i, path in enumerate(images.table.paths) if path in untested]
    left_out = [i for i in rows if images.groups[i] in held_out_groups]
    train_groups = {images.groups[i] for i in rows} - held_out_groups
    splits = list(inherited)
    for i, group in enumerate(images.groups):
        if splits[i] is None and group in train_groups:
            splits[i] = "train"
    return splits, left_out


def check_unseen(images: RunImages, recipe: Recipe, seen_before: PictureRecord, what: str) -> Overlap:
    """Raise a `VitkitError` if the initial weights or the teacher were trained or selected on one of the images.

    `what` names the option or the run that tests every image. Return the overlap of the images with `seen_before`.
    """
    overlap = _compare(images, seen_before, "weights")
    seen = len(overlap.seen())
    if seen:
        raise VitkitError(
            "training.images-seen",
            f"{what} tests every picture, but {_source(recipe)} has seen {seen} of the {len(images.table)} pictures: "
            f"use other --weights, such as those from which that training started, or do without {what}",
        )
    return overlap


def _compare(images: RunImages, record: PictureRecord, source: str) -> Overlap:
    return find_overlap(record, images.table, images.facts, partial(progress, f"comparing with {source}"))


def _source(recipe: Recipe) -> str:
    """Return the name of the initial weights, or of the teacher if the weights are random, without the folder."""
    return public_path(weights_of(recipe) if recipe.weights != "none" else str(recipe.teacher))


# --- Messages --------------------------------------------------------------------------------------------------


def ancestry_findings(split_images: SplitImages, recipe: Recipe) -> list[Finding]:
    """Report the held-out images that the initial weights had seen, and whether copies of such may have been missed."""
    table, overlap = split_images.images.table, split_images.overlap
    source, all_seen, findings = _source(recipe), overlap.seen(), list[Finding]()
    for name in ("test", "val"):
        seen = [i for i in all_seen if table.splits[i] == name]
        if name == "val":  # weights may be selected twice on the same images
            seen = [i for i in seen if overlap.roles[i] == "train"]
        if seen:
            text = f"{source} had seen {len(seen)} of the {table.splits.count(name)} {name} images"
            paths = listed([table.paths[i] for i in seen])
            findings.append(Finding("problem", f"{text}, which {_EFFECTS[name]}: {paths}", is_settled=True))
    if all_seen and "test" not in table.splits:
        findings.append(Finding("problem", f"{source} had seen so many images that none is left for the test"))
    elif all_seen and not findings:
        text = f"{source} had seen {len(all_seen)} of these {len(table)} images, none of them held out here"
        findings.append(Finding("note", text))
    if overlap.looked_for == "exact":
        text = "the images are too similar to each other to recognise near copies of images that the weights had seen"
        findings.append(Finding("warning", f"{text}; only identical files were searched for"))
    elif overlap.looked_for == "near":
        text = (
            "altered copies (cropped, captioned, recoloured) of images that the weights had seen were not searched for"
        )
        findings.append(Finding("warning", f"{text}; identical, resized, recompressed and mirrored copies were"))
    return findings


def _inheritance_findings(
    table: ImageTable, in_run: Overlap, inherited: Sequence[str | None], conflicting: Sequence[int], source: str
) -> list[Finding]:
    """Report images whose split in an earlier run is contradictory (`conflicting`), changed or unknown."""
    findings = list[Finding]()
    if conflicting:
        copies = "image is a copy" if len(conflicting) == 1 else "images are copies"
        text = f"{len(conflicting)} new or relabelled {copies} of pictures in different splits of {source}"
        paths = ", ".join(table.paths[i] for i in conflicting)
        findings.append(Finding("warning", f"{text} and left out: {paths}"))
    moved = sorted(i for i in in_run.relabelled if inherited[i] not in (None, in_run.roles[i]))
    if moved:
        copies = "relabelled image is now a copy" if len(moved) == 1 else "relabelled images are now copies"
        text = f"{len(moved)} {copies} of pictures in another split of {source}, and with them"
        findings.append(Finding("note", f"{text}: {listed([table.paths[i] for i in moved])}"))
    if not any(in_run.roles):
        findings.append(Finding("problem", f"no image is known from {source}: the images are divided anew"))
    return findings


def _split_findings(
    images: RunImages, after: ImageTable, inherited: Sequence[str | None], source: str
) -> list[Finding]:
    """Report how many images keep the split of an earlier run, and how many pictures are in two of its splits."""
    rows = zip(after.splits, inherited, images.table.splits, strict=True)
    known = Counter(name for name, earlier, given in rows if given is None and name == earlier)
    if not known:
        return []
    parts = ", ".join(f"{known[name]} {name}" for name in SPLITS)
    text = f"{known.total()} of {len(after)} images are known from {source} and keep their split ({parts})"
    findings = [Finding("note", f"{text}; {len(after) - known.total()} are new")]
    groups_and_splits = set(zip(images.groups, after.splits, strict=True))
    splits_per_group = Counter(group for group, _ in groups_and_splits)
    divided = sum(count > 1 for count in splits_per_group.values())
    if divided:
        text = f"{divided} {'picture is' if divided == 1 else 'pictures are'} in two splits of {source}"
        findings.append(Finding("problem", text, is_settled=True))
    return findings
