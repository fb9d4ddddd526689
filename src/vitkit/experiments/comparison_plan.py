"""Plan the trainings of a comparison: every model, on every fraction of the data, with every seed.

All settings are resolved before the first training starts. Weights that do not fit the named model are refused.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path, PurePath
from typing import Any

from vitkit.data import held_out_split, limit_training
from vitkit.errors import VitkitError
from vitkit.experiments.comparison_request import budget_of, fractions_of, names_of, recipe_of, refuse_divided
from vitkit.experiments.judging import before_training, hash_of_images
from vitkit.model import ViTConfig, config_for, is_model_name
from vitkit.system import fitting, receiver, without_place
from vitkit.training import (
    Recipe,
    Run,
    SplitImages,
    prepared,
    requested,
    weights_of,
    without_effect,
    without_fields_of_vits,
)


def check_weights_name(start: Run) -> None:
    """Check that the initial weights have the architecture of the model that is named in the recipe."""
    recipe = start.recipe
    if recipe.weights in ("auto", "none") or recipe.model is None or not is_model_name(recipe.model):
        return
    named, config = config_for(recipe.model), start.config
    if not isinstance(config, ViTConfig):
        return  # refused elsewhere
    for field in ("layers", "hidden_size", "heads", "patch_size"):
        if field not in (recipe.model_fields or {}) and getattr(named, field) != getattr(config, field):
            raise VitkitError(
                f"{recipe.model} has {field} {getattr(named, field)}, but the weights {weights_of(recipe)} "
                f"have {field} {getattr(config, field)}: use the name of the model that these weights belong to"
            )


RECIPES = ".toml"  # the suffix of a requested model that has its own recipe
_WHOLE = 1.0


@dataclass(frozen=True)
class ComparisonJob:
    """One training of a comparison.

    Attributes:
        model: the name of the model in the comparison.
        seed: the seed of the training.
        fraction: the fraction of the training images.
        images: the number of training images.
        fields: the fields of the recipe.
        folder: the folder of the run, relative to the folder of the comparison.
        pretraining: the fields of the pre-training that provides the initial weights; None without pre-training.
        flops: the FLOPs of the training; None if they are not known before it starts.
    """

    model: str
    seed: int
    fraction: float
    images: int
    fields: dict[str, Any]
    folder: str
    pretraining: dict[str, Any] | None = None
    flops: float | None = None

    def __post_init__(self) -> None:
        if (place := PurePath(self.folder)).is_absolute() or ".." in place.parts or not place.parts:
            raise ValueError(f"{self.folder!r} is not a folder below a comparison")  # it may be cleared and written to

    @property
    def described(self) -> str:
        """The training in words: model, seed, and fraction of the images."""
        part = "" if self.fraction == _WHOLE else f", {self.fraction:.3g} of the images"
        return f"{self.model}, seed {self.seed}{part}"


@dataclass(frozen=True)
class Plan:
    """All trainings of a comparison, and a hash of the images that they are tested on.

    Attributes:
        arguments: data, models, recipe, seeds, fractions, budget and stress, in plain JSON types.
        models: the names of the models, in the requested order.
        seeds: the seeds of the trainings.
        fractions: the fractions of the training images, the smallest first.
        jobs: the trainings in the order in which they run. Models with equal configurations share their trainings.
        test_hash: the hash of the test images and their labels.
        notes: notes for the user, one line each.
    """

    arguments: dict[str, Any]
    models: tuple[str, ...]
    seeds: tuple[int, ...]
    fractions: tuple[float, ...]
    jobs: tuple[ComparisonJob, ...]
    test_hash: str
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the plan in plain JSON types."""
        stored = asdict(self)
        return {"asked": stored.pop("arguments"), **stored}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Plan:
        """Create a plan from the result of `to_dict`."""
        rest = dict(stored)
        arguments, names = rest.pop("asked"), ("models", "seeds", "fractions", "notes")
        jobs = tuple(ComparisonJob(**job) for job in stored["jobs"])
        return cls(arguments, **{**rest, **{name: tuple(stored[name]) for name in names}, "jobs": jobs})

    def runs(self) -> list[ComparisonJob]:
        """Return the distinct trainings, one job for each run folder."""
        first: dict[str, ComparisonJob] = {}
        for job in self.jobs:
            first.setdefault(job.folder, job)
        return list(first.values())


def make_plan(arguments: Mapping[str, Any], fields: Mapping[str, Any]) -> Plan:
    """Plan a comparison: resolve the training of every model, without training anything.

    Args:
        arguments: data, models, recipe, seeds, fractions, budget and stress, as in `compare`.
        fields: the fields of the recipe, for all models.

    Raises:
        VitkitError: a model cannot be built, cannot be trained on these images, or would be tested on other images than
            the first model.
    """
    names, fractions = names_of(arguments["models"]), fractions_of(arguments["fractions"])
    budget = budget_of(arguments["budget"], fields)
    shared = {*fields} if budget is None else {*fields, budget[0]}
    entries: list[_Candidate] = []
    notes: list[str] = []
    labels = [_label(name) for name in names]
    for place, name in enumerate(names):
        receiver()("checking the models", place, len(names))
        label, before = labels[place], labels[:place].count(labels[place])
        label = f"{label} ({before + 1})" if before else label
        asked, left_out = without_fields_of_vits(_requested(name, arguments, fields, budget))
        notes += [f"{label}: {reason}" for reason in left_out]
        try:
            start = prepared(asked).released()
            check_weights_name(start)
            idle = without_effect(start.recipe, asked)
        except VitkitError as error:
            raise VitkitError(f"{name}: {error}") from error
        if arguments["stress"]:
            start.source.task.require_single(
                "--stress requires one class per picture, but these may have several: leave it out"
            )
        (part,) = start.parts
        judged_by = hash_of_images(part, held_out_split(part.images.table))
        if entries and judged_by != entries[0].judged_by:
            raise VitkitError(
                f"{label} starts from a run that was trained on some of this data, so it needs the split of that run "
                f"and would be tested on other images than {entries[0].label}: pass the run as --split-from, or choose "
                "other weights"
            )
        entries.append(_Candidate(label, asked.set_fields(), idle, start, part, judged_by))
    first = entries[0]
    for field in shared:
        if all(field in entry.idle for entry in entries):
            raise VitkitError(f"{field} {first.idle[field]}: leave it out")
    notes += [
        f"{name}: {field} is ignored: it {reason}"
        for name, entry in zip(labels, entries, strict=True)
        for field, reason in entry.idle.items()
    ]
    notes += [*first.start.source.unmatched, *first.start.source.corrections]
    notes += [f"{entry.label}: {reason}" for entry in entries for reason in entry.start.reasons]
    judging = before_training((entry.label, entry.split_images) for entry in entries)
    judging.check()
    notes += judging.findings()
    seeds = tuple(first.start.recipe.seed + k for k in range(int(arguments["seeds"])))
    for seed in seeds:  # the smallest fraction must contain an image of each class
        try:
            limit_training(first.split_images.images.table, _count(first.images, fractions[0]), seed)
        except VitkitError as error:
            raise VitkitError(f"--fractions {fractions[0]:g}: {error}") from error
    jobs, notes_on_jobs = _jobs(entries, fractions, seeds, budget)
    notes += notes_on_jobs
    if len(seeds) == 1:
        notes.append(
            "one seed: intervals and verdicts include the choice of images, but not the variation between trainings"
        )
    return Plan(
        dict(arguments), tuple(entry.label for entry in entries), seeds, fractions, jobs, first.judged_by, tuple(notes)
    )


def _label(name: str) -> str:
    """Return the name that a requested model has in the comparison, without the path of its recipe or weights."""
    if name.endswith(RECIPES):
        return Path(name).stem
    model, at, weights = name.partition("@")
    return f"{model}{at}{without_place(weights) if weights else ''}"


@dataclass(frozen=True)
class _Candidate:
    """A model to compare, with the resolved settings of its training on all images.

    Attributes:
        label: the name of the model in the comparison.
        fields: the fields of its recipe.
        idle: the fields that have no effect, and the reasons.
        start: the resolved training.
        split_images: the images with their splits.
        judged_by: the hash of the held-out images, on which the model is tested.
    """

    label: str
    fields: dict[str, Any]
    idle: dict[str, str]
    start: Run
    split_images: SplitImages
    judged_by: str

    @property
    def images(self) -> int:
        """The number of training images."""
        return self.split_images.images.table.splits.count("train")


def _requested(
    name: str, arguments: Mapping[str, Any], fields: Mapping[str, Any], budget: tuple[str, str] | None
) -> Recipe:
    """Return the requested recipe of one model's training, from its own recipe or the shared one."""
    is_file = name.endswith(RECIPES)
    if is_file and arguments["recipe"] is not None:
        raise VitkitError(f"{name} is a recipe itself: leave out --recipe {arguments['recipe']}")
    model, at, weights = ("", "", "") if is_file else name.partition("@")
    if at and not weights:
        raise VitkitError(f"{name}: @ must be followed by weights, or by the word none")
    fields_of_run = {
        **fields,
        "data": arguments["data"],
        **({"model": model} if model else {}),
        **({"weights": weights} if at else {}),
    }
    if budget is not None and budget[0] != "flops":
        fields_of_run[budget[0]] = int(budget[1]) if budget[0] == "epochs" else budget[1]
    asked = requested(recipe_of(name if is_file else arguments["recipe"], fields_of_run))
    if not model and not is_file:
        asked = asked.without(["model"])
    refuse_divided(asked.set_fields())
    return asked.replace(split_seed=asked.seed_of_split)


def _count(images: int, fraction: float) -> int:
    return max(round(fraction * images), 1)


def _jobs(
    entries: Sequence[_Candidate], fractions: Sequence[float], seeds: Sequence[int], budget: tuple[str, str] | None
) -> tuple[tuple[ComparisonJob, ...], list[str]]:
    """Return all trainings, ordered by fraction and seed, and notes about the budget."""
    folders: dict[tuple[str, float, int], str] = {}
    jobs, notes = [], []
    # Models with the same complete recipe share their trainings.
    configurations = [replace(entry.start.recipe, seed=0).to_toml() for entry in entries]
    flops_of_image = [passes_of(entry.start.recipe.method) * forward_flops(entry.start) for entry in entries]
    for fraction, (place, entry) in itertools.product(fractions, enumerate(entries)):
        name = f"{place + 1}-{re.sub(r'[^A-Za-z0-9._-]+', '-', entry.label)}"
        images, recipe = _count(entry.images, fraction), entry.start.recipe
        fields = {field: entry.fields[field] for field in entry.fields if field not in entry.idle}
        fields["method"] = recipe.method  # chosen for all data, used for every fraction
        if images < entry.images:
            fields["max_images"] = images
        epoch = flops_of_image[place] * images
        if budget is not None and budget[0] == "flops":
            most = float(budget[1])
            if recipe.method == "probe":
                note = "its features are computed only once, which uses less than the budget"
            else:
                fields["epochs"] = count = max(int(most // epoch), 1)
                epochs = f"{count} epochs of {images} images are" if count > 1 else f"1 epoch of {images} images is"
                over = f", which exceeds the budget of {most:.3g} but is the minimum" if epoch > most else ""
                note = f"{epochs} {count * epoch:.3g} FLOPs{over}"
            notes.append(f"{entry.label}: {note}")
        views = 1 if recipe.method == "probe" else fields.get("epochs") or recipe.epochs
        flops = None if budget is not None and budget[0] == "time" else epoch * views
        for seed in seeds:
            key = (f"{configurations[place]} {fields.get('epochs')}", fraction, seed)
            folder = folders.setdefault(key, f"runs/{fitting(name, f'-{fraction:g}-seed{seed}')}")
            job_fields = {**fields, "seed": seed}
            jobs.append(ComparisonJob(entry.label, seed, fraction, images, job_fields, folder, None, flops))
    jobs.sort(key=lambda job: (job.fraction, job.seed))  # all models of one seed are trained one after another
    return tuple(jobs), list(dict.fromkeys(notes))


def passes_of(method: str) -> int:
    """Return the cost of a training step of this method, in forward passes; a full backward pass counts as two."""
    return {"probe": 1, "probe-sgd": 1, "lora": 2}.get(method, 3)  # lora has no gradients of the large matrices


def forward_flops(start: Run) -> float:
    """Return the FLOPs of a forward pass of one image; a multiply-accumulate counts as two."""
    from vitkit.profiling import describe

    return 2e9 * describe(start.config).gmacs
