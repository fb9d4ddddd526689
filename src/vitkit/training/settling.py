"""All that a run's recipe and data leave open, settled before anything is written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vitkit.data.corrected import read_corrected
from vitkit.data.doctor.examine import examine
from vitkit.data.doctor.findings import Finding, of_scenes, of_splits
from vitkit.data.pictures import PictureRecord
from vitkit.data.splits import check_trainable, fold, limit_training, scenes, split
from vitkit.data.table import ImageTable
from vitkit.errors import VitkitError
from vitkit.model.network_config import Config
from vitkit.system.progress import Progress
from vitkit.training.defaults import complete, spare_patches
from vitkit.training.first_head import settle_head
from vitkit.training.lineage import Divided, Images, ancestry_of, divide, of_ancestry, refuse_folds
from vitkit.training.recipe import Recipe
from vitkit.training.relabelled import Proposed, find_proposed, place_proposals
from vitkit.training.setup import start_of
from vitkit.training.teacher import load_teacher


@dataclass(frozen=True)
class Settled:
    """What a run is to do, and on which images.

    Attributes:
        recipe: with nothing left open.
        config: the architecture.
        reasons: why it is what it is where nobody said, a line each.
        table: the data as they were found.
        parts: the images split, once, or for each fold of a cross-validation.
        before: what the weights were trained on.
        findings: what is wrong with the data, however they are split.
        torn: images of one scene that come in two splits.
    """

    recipe: Recipe
    config: Config
    reasons: tuple[str, ...]
    table: ImageTable
    parts: tuple[Divided, ...]
    before: PictureRecord
    findings: tuple[Finding, ...]
    torn: tuple[Finding, ...]

    def findings_of(self, own: Divided) -> list[Finding]:
        """What is wrong with the data as they are split."""
        return [*of_ancestry(own, self.recipe), *self.torn, *own.findings, *self.findings, *of_splits(own.images.table)]


def settle(
    fields: dict[str, Any],
    progress: Progress,
    take_place: Callable[[ImageTable, Recipe], None] | None = None,
    runs: Sequence[Path] = (Path("runs"),),
) -> Settled:
    """Settle what the fields of a recipe leave open: read the data, look for what spoils them, and split them.

    Args:
        fields: of the recipe, by name; its `data` must be set.
        progress: told what is being done, how many are done, of how many.
        take_place: called before images are read, which may take long, with what is known by then.
        runs: folders of runs that may have proposed labels of these images.

    Raises:
        VitkitError: the data or the recipe cannot be trained on.
    """
    table = read_corrected(fields["data"], fields.get("labels"), progress, fields.get("layout", "auto"))
    check_trainable(table)
    recipe, reasons = complete(fields, table)
    if take_place is not None:
        take_place(table, recipe)
    recipe, of_head = settle_head(recipe, fields, table, progress)
    # What cannot be built should fail before the images are read.
    config, preprocess = start_of(recipe, table.classes, progress)
    recipe = spare_patches(recipe, fields, config)
    taught = None
    if recipe.teacher is not None:
        taught = load_teacher(recipe.teacher, table.classes, config.image_size).pictures
    diagnosis = examine(table, preprocess, progress)
    groups = list(diagnosis.twins)
    if recipe.group_by is not None:
        groups = scenes(diagnosis.table, recipe.group_by, groups)
    torn = [] if recipe.group_by is None else of_scenes(diagnosis.table, groups)
    images = Images.of(diagnosis, groups)
    before = ancestry_of(recipe, taught, progress)
    proposed = find_proposed(images, table, recipe, runs, progress)
    parts = place_proposals(proposed, _parts(images, recipe, before, proposed, progress), recipe)
    if recipe.max_images is not None:
        parts = [limit(own, recipe.max_images, recipe.seed) for own in parts]
    return Settled(
        recipe, config, (*reasons, *of_head), table, tuple(parts), before, tuple(diagnosis.findings), tuple(torn)
    )


def _parts(
    images: Images, recipe: Recipe, before: PictureRecord, proposed: Proposed, progress: Progress
) -> list[Divided]:
    """The images split as the recipe says: once, or with each fold in turn as its test images."""
    if recipe.folds is None:
        proposers = (None if proposed.comes_split else proposed.taught, proposed.teachers)
        return [divide(images, recipe, before, progress, proposers)]
    table, groups = images.table, images.groups
    if any(table.splits):
        raise VitkitError(
            f"{table.name} comes already split; --folds makes its own parts: name a folder of class folders"
        )
    if recipe.split[0] <= 0:
        raise VitkitError(f"split must be three parts with something to train on, not {recipe.split}")
    overlap = refuse_folds(images, recipe, before, progress)
    fold_of = fold(table, recipe.folds, recipe.seed_of_split, groups)
    train, val, _ = recipe.split
    shares = (train / (train + val), val / (train + val), 0.0)
    parts = []
    for own in range(recipe.folds):
        tested = replace(table, splits=tuple("test" if other == own else "train" for other in fold_of))
        parts.append(Divided(replace(images, table=split(tested, shares, recipe.seed_of_split, groups)), overlap))
    return parts


def limit(own: Divided, most: int, seed: int) -> Divided:
    """The same with fewer training images."""
    limited = limit_training(own.images.table, most, seed)
    place = {path: i for i, path in enumerate(own.images.table.paths)}
    kept = [place[path] for path in limited.paths]
    return replace(own, images=replace(own.images.take(kept), table=limited), overlap=own.overlap.take(kept))
