"""Choose the images on which the models of a comparison are tested: held-out images that none of the weights has seen.

Weights that start from a run may have been trained on some of the held-out images, and predefined splits may share
pictures. Such images would favour the model that has seen them. A difference between two models requires images that
are fair to both, so these images are left out for all models.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitkit.data.seen import PictureRecord, exposures
from vitkit.data.split_file import read_contents, roles_in_run, split_from_file
from vitkit.data.splits import held_out_split
from vitkit.data.table import ImageTable
from vitkit.errors import VitkitError
from vitkit.evaluation.figures import chosen_on, seen_of
from vitkit.evaluation.headline import images_in_words
from vitkit.model_folder import read_description, read_record
from vitkit.system.files import to_json
from vitkit.system.run_files import RECIPE, SPLIT
from vitkit.text.cells import plural
from vitkit.training.lineage import SplitImages, contents_of
from vitkit.training.recipe_files import load_of_run

FEWEST = 20  # images that are left to judge by, or half of all, where others had been seen: fewer tell nothing apart


@dataclass(frozen=True)
class JudgingImages:
    """The test images of a comparison.

    Attributes:
        split: the held-out split: test, else val.
        held_out: how many images that has.
        seen: for each model whose weights had seen some of them, which.
        chosen_on: what the trainings chose on these images; empty where they are test images.
    """

    split: str
    held_out: int
    seen: Mapping[str, frozenset[str]]
    chosen_on: tuple[str, ...] = ()

    @property
    def left_out(self) -> frozenset[str]:
        """Return the paths of images that are left out because some of the weights had seen them."""
        return frozenset[str]().union(*self.seen.values())

    @property
    def left(self) -> int:
        """Return the number of images that remain."""
        return self.held_out - len(self.left_out)

    @property
    def described(self) -> str:
        """Describe the images, e.g. `359 test images`."""
        return images_in_words(self.left, self.split)

    def findings(self) -> list[str]:
        """Return a sentence for each reason why the figures mean less than they seem to."""
        notes = []
        if self.seen:
            who = ", ".join(f"{model} had seen {len(paths)}" for model, paths in self.seen.items())
            of = images_in_words(self.held_out, self.split)
            notes.append(f"{len(self.left_out)} of {of} are left out for all models: {who}")
        if self.chosen_on:
            notes.append(
                f"the figures are of validation images, on which the trainings chose {', '.join(self.chosen_on)}, so "
                "they flatter; only a test split gives figures on which nothing was chosen"
            )
        return notes

    def to_dict(self) -> dict[str, Any]:
        """Return, as plain JSON types, how many images are left out and how many of them each model had seen."""
        return {"images": len(self.left_out), "seen": {model: len(paths) for model, paths in self.seen.items()}}

    def check(self) -> None:
        """Refuse to judge by what is left where that is too little.

        Raises:
            VitkitError: the weights had seen so many that fewer than `FEWEST` are left, and fewer than half.
        """
        if self.seen and self.left < max(min(FEWEST, self.held_out / 2), 1):
            who = ", ".join(f"{model} had seen {len(paths)}" for model, paths in self.seen.items())
            raise VitkitError(
                f"{plural(self.left, 'image is', 'images are')} left to judge by, which is too few: of "
                f"{images_in_words(self.held_out, self.split)} {who}; name other weights, or hold out photographs that "
                "none of the models was trained on and that are no copies of training images"
            )


def before_training(entries: Iterable[tuple[str, SplitImages]]) -> JudgingImages:
    """Choose the test images for models that are not trained yet.

    Args:
        entries: the name of each model, and its images, split in the same way for all.
    """
    seen, split, held_out = {}, "all", 0
    for model, start in entries:
        table = start.images.table
        split = held_out_split(table)
        roles = exposures(table, start.images.twins, start.overlap)
        judging = [i for i, name in enumerate(table.splits) if split in ("all", name)]
        held_out = len(judging)
        seen[model] = frozenset(seen_of({table.paths[i]: roles[i] for i in judging}, split))
    return JudgingImages(split, held_out, {model: paths for model, paths in seen.items() if paths})


def after_training(runs: Iterable[tuple[str, Path]], test_hash: str) -> JudgingImages:
    """Choose the test images for finished runs, by the records of what their weights have seen.

    Args:
        runs: the model and the folder of each.
        test_hash: the test hash of the images that the comparison began with.

    Raises:
        VitkitError: a run was judged by other images, or its files are damaged.
    """
    seen: dict[str, frozenset[str]] = {}
    chosen: dict[str, None] = {}
    split, held_out = "all", 0
    for model, folder in runs:
        table = check_judge(folder, test_hash)
        split = held_out_split(table)
        judging = table.paths if split == "all" else table.of_split(split).paths
        held_out = len(judging)
        seen[model] = seen.get(model, frozenset()) | seen_in_run(folder, judging, split)
        recipe = load_of_run(folder / RECIPE)
        chosen |= dict.fromkeys(chosen_on(split, vars(recipe), table.task))
    return JudgingImages(split, held_out, {model: paths for model, paths in seen.items() if paths}, tuple(chosen))


def seen_in_run(run: Path, judging: Sequence[str], split: str) -> frozenset[str]:
    """Return which images of a split the weights of a run had seen; none if there is no record."""
    pictures = read_record(run, read_description(run))
    if pictures is None:
        return frozenset()
    roles = roles_in_run(run / SPLIT, PictureRecord.from_bytes(pictures, run))
    return frozenset(seen_of({path: roles.get(path) for path in judging}, split))


def hash_of_images(images: SplitImages, split: str) -> str:
    """Hash the images of a split by their content and class, independently of their names."""
    table, contents = images.images.table, contents_of(images.images)
    chosen = range(len(table)) if split == "all" else [i for i, name in enumerate(table.splits) if name == split]
    return _hash_of(sorted((table.name_of(i), contents[table.paths[i]]) for i in chosen))


def check_judge(run: Path, test_hash: str) -> ImageTable:
    """Hold that a run was judged by the images of the comparison, by their content and classes; its images.

    Raises:
        VitkitError: it was judged by others.
    """
    table, contents = split_from_file(run / SPLIT), read_contents(run / SPLIT)
    split = held_out_split(table)
    chosen = [i for i, name in enumerate(table.splits) if split in ("all", name)]
    if _hash_of(sorted((table.name_of(i), contents.get(table.paths[i], "")) for i in chosen)) != test_hash:
        raise VitkitError(f"{run} was judged by other images than the comparison began with: begin it anew")
    return table


def _hash_of(rows: Sequence[tuple[str, str]]) -> str:
    """Hash classes and image digests, sorted."""
    return hashlib.sha256(to_json([list(row) for row in rows]).encode()).hexdigest()
