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
from vitkit.experiments.comparison_images import before_training, hash_of_images
from vitkit.experiments.comparison_request import fractions_of, max_flops_of, names_of, recipe_of, refuse_divided
from vitkit.model import ViTConfig, config_for, is_model_name
from vitkit.system import fit_name, public_path, receiver
from vitkit.training import (
    Recipe,
    Run,
    SplitImages,
    prefix_errors,
    prepared,
    requested,
    weights_of,
    without_effect,
    without_vit_fields,
)


def check_weights_name(start: Run) -> None:
    """Refuse initial weights with another architecture than the model that is named in the recipe."""
    recipe = start.recipe
    if recipe.weights in ("auto", "none") or recipe.model is None or not is_model_name(recipe.model):
        return
    named, config = config_for(recipe.model), start.config
    if not isinstance(config, ViTConfig):
        return  # refused elsewhere
    for field in ("layers", "hidden_size", "heads", "patch_size"):
        if field not in (recipe.model_fields or {}) and getattr(named, field) != getattr(config, field):
            raise VitkitError(
                "experiments.weights-unlike-model",
                f"{recipe.model} has {field} {getattr(named, field)}, but the weights {weights_of(recipe)} "
                f"have {field} {getattr(config, field)}: use the name of the model that these weights belong to",
            )


@dataclass(frozen=True)
class ComparisonJob:
    """One training of a comparison."""

    model: str  # its name in the comparison
    seed: int
    fraction: float  # of the training images
    images: int
    fields: dict[str, Any]  # of the recipe
    folder: str  # of the run, relative to the folder of the comparison
    pretraining: dict[str, Any] | None = None  # the fields of the pre-training that gives the initial weights

    def __post_init__(self) -> None:
        path = PurePath(self.folder)
        if path.is_absolute() or ".." in path.parts or not path.parts:  # the folder is written to, and may be cleared
            raise VitkitError(
                "experiments.plan-damaged",
                f"the plan names the folder {self.folder!r}, which is not in that of the comparison: start a new one",
            )

    @property
    def described(self) -> str:
        """The training in words: model, seed, and fraction of the images."""
        part = "" if self.fraction == 1.0 else f", {self.fraction:.3g} of the images"
        return f"{self.model}, seed {self.seed}{part}"


@dataclass(frozen=True)
class Plan:
    """All trainings of a comparison."""

    arguments: dict[str, Any]  # data, models, recipe, seeds, fractions and budget, in plain JSON types
    models: tuple[str, ...]
    seeds: tuple[int, ...]
    fractions: tuple[float, ...]  # of the training images, the smallest first
    jobs: tuple[ComparisonJob, ...]  # in the order in which they run
    test_hash: str  # of the test images and their labels
    notes: tuple[str, ...]  # for the user, one line each

    def to_dict(self) -> dict[str, Any]:
        """Return the plan in plain JSON types, with `arguments` under the key `asked`."""
        stored = asdict(self)
        return {"asked": stored.pop("arguments"), **stored}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Plan:
        """Create a plan from the result of `to_dict`."""
        fields = dict(stored)
        arguments = fields.pop("asked")
        fields |= {name: tuple(fields[name]) for name in ("models", "seeds", "fractions", "notes")}
        fields["jobs"] = tuple(ComparisonJob(**job) for job in fields["jobs"])
        return cls(arguments, **fields)


def make_plan(arguments: Mapping[str, Any], fields: Mapping[str, Any]) -> Plan:
    """Plan a comparison: resolve the training of every model, without training anything.

    `arguments` are data, models, recipe, seeds, fractions and budget, as in `compare`; `fields` are those of the
    recipe, for all models.
    """
    names, fractions = names_of(arguments["models"]), fractions_of(arguments["fractions"])
    max_flops = max_flops_of(arguments["budget"], fields)
    entries: list[_Candidate] = []
    labels: list[str] = []
    notes: list[str] = []
    for done, name in enumerate(names):
        receiver()("checking the models", done, len(names))
        label, recipe = _label_and_request(name, arguments, fields)
        labels.append(label)
        if labels.count(label) > 1:
            label = f"{label} ({labels.count(label)})"
        request, left_out = without_vit_fields(recipe)
        notes += [f"{label}: {reason}" for reason in left_out]
        with prefix_errors(name):
            start = prepared(request)
            start.blueprint = replace(start.blueprint, weights=None, plan=None)  # they would stay in memory
            check_weights_name(start)
            unused = without_effect(start.recipe, request)
        (part,) = start.parts
        test_hash = hash_of_images(part, held_out_split(part.images.table))
        if entries and test_hash != entries[0].test_hash:
            raise VitkitError(
                "experiments.test-images-differ",
                f"{label} starts from a run that was trained on some of this data, so it needs the split of that run "
                f"and would be tested on other images than {entries[0].label}: pass the run as --split-from, or choose "
                "other weights",
            )
        entries.append(_Candidate(label, request.set_fields(), unused, start, part, test_hash))
    first = entries[0]
    label_of_recipe: dict[str, str] = {}
    for entry in entries:
        recipe_text = replace(entry.start.recipe, seed=0).to_toml()
        if recipe_text in label_of_recipe:
            raise VitkitError(
                "experiments.model-twice",
                f"{label_of_recipe[recipe_text]} and {entry.label} are the same configuration: leave one out",
            )
        label_of_recipe[recipe_text] = entry.label
    for field in fields:
        if all(field in entry.unused for entry in entries):
            raise VitkitError("experiments.argument-unused", f"{field} {first.unused[field]}: leave it out")
    notes += [
        f"{name}: {field} is ignored: it {reason}"
        for name, entry in zip(labels, entries, strict=True)
        for field, reason in entry.unused.items()
    ]
    notes += [*first.start.source.unmatched, *first.start.source.corrections]
    notes += [f"{entry.label}: {reason}" for entry in entries for reason in entry.start.reasons]
    test_images = before_training((entry.label, entry.split_images) for entry in entries)
    test_images.check()
    notes += test_images.findings()
    first_seed = first.start.recipe.seed
    seeds = tuple(range(first_seed, first_seed + int(arguments["seeds"])))
    with prefix_errors(f"--fractions {fractions[0]:g}"):  # the smallest fraction must contain an image of each class
        limit_training(first.split_images.images.table, max(round(fractions[0] * first.images), 1), seeds[0])
    jobs, notes_on_jobs = _jobs(entries, fractions, seeds, max_flops)
    notes += notes_on_jobs
    if len(seeds) == 1:
        notes.append(
            "one seed: intervals and verdicts include the choice of images, but not the variation between trainings"
        )
    return Plan(
        arguments=dict(arguments),
        models=tuple(entry.label for entry in entries),
        seeds=seeds,
        fractions=fractions,
        jobs=jobs,
        test_hash=first.test_hash,
        notes=tuple(notes),
    )


@dataclass(frozen=True)
class _Candidate:
    """A model to compare, with the resolved settings of its training on all images."""

    label: str
    fields: dict[str, Any]  # of the recipe
    unused: dict[str, str]  # the fields that have no effect, and the reasons
    start: Run
    split_images: SplitImages
    test_hash: str  # the hash of the held-out images, on which the model is tested

    @property
    def images(self) -> int:  # for training
        return self.split_images.images.table.splits.count("train")


def _label_and_request(name: str, arguments: Mapping[str, Any], fields: Mapping[str, Any]) -> tuple[str, Recipe]:
    """Return the label of a requested model (NAME, NAME@WEIGHTS or RECIPE.toml) and the requested recipe."""
    chosen: dict[str, str] = {}
    if name.endswith(".toml"):
        source, label = name, Path(name).stem
        if arguments["recipe"] is not None:
            raise VitkitError(
                "experiments.recipe-twice", f"{name} is a recipe itself: leave out --recipe {arguments['recipe']}"
            )
    else:
        source = arguments["recipe"]
        label, at, weights = name.partition("@")
        if label:
            chosen["model"] = label
        if at:
            if not weights:
                message = f"{name}: @ must be followed by weights, or by the word none"
                raise VitkitError("experiments.models-invalid", message)
            chosen["weights"] = weights
            label += f"@{public_path(weights)}"
    request = requested(recipe_of(source, {**fields, "data": arguments["data"], **chosen}))
    if chosen.keys() == {"weights"}:  # @WEIGHTS: the weights determine the model, whatever the recipe names
        request = request.without(["model"])
    refuse_divided(request.set_fields())
    # The seed of the split stays the same when `seed` varies between the trainings.
    return label, request.replace(split_seed=request.seed_of_split)


def _jobs(
    entries: Sequence[_Candidate], fractions: Sequence[float], seeds: Sequence[int], max_flops: float | None
) -> tuple[tuple[ComparisonJob, ...], list[str]]:
    # Return the trainings, ordered by fraction and seed, and notes about the budget.
    from vitkit.profiling import describe

    jobs, notes = [], []
    flops_of_image = {  # in training; a multiply-accumulate counts as two
        entry.label: passes_of(entry.start.recipe.method) * (2e9 * describe(entry.start.config).gmacs)
        for entry in entries
    }
    for fraction, (number, entry) in itertools.product(fractions, enumerate(entries, start=1)):
        images = max(round(fraction * entry.images), 1)
        method = entry.start.recipe.method  # chosen for all data, used for every fraction
        fields = {field: value for field, value in entry.fields.items() if field not in entry.unused}
        fields["method"] = method
        if images < entry.images:
            fields["max_images"] = images
        if max_flops is not None:
            note = "its features are computed only once, which uses less than the budget"
            if method != "probe":
                epoch_flops = flops_of_image[entry.label] * images
                fields["epochs"] = epochs = max(int(max_flops // epoch_flops), 1)
                counted = f"{epochs} epochs of {images} images are" if epochs > 1 else f"1 epoch of {images} images is"
                note = f"{counted} {epochs * epoch_flops:.3g} FLOPs"
                if epoch_flops > max_flops:
                    note += f", which exceeds the budget of {max_flops:.3g} but is the minimum"
            notes.append(f"{entry.label}: {note}")
        name = f"{number}-{re.sub(r'[^A-Za-z0-9._-]+', '-', entry.label)}"
        for seed in seeds:
            folder = f"runs/{fit_name(name, f'-{fraction:g}-seed{seed}')}"
            jobs.append(ComparisonJob(entry.label, seed, fraction, images, {**fields, "seed": seed}, folder))
    jobs.sort(key=lambda job: (job.fraction, job.seed))  # all models of one seed are trained one after another
    return tuple(jobs), list(dict.fromkeys(notes))


def passes_of(method: str) -> int:
    """Return the cost of a training step of this method, in forward passes; a full backward pass counts as two."""
    return {"probe": 1, "probe-sgd": 1, "lora": 2}.get(method, 3)  # lora has no gradients of the large matrices
