"""Compute the numbers of a comparison ("figures"): those of each run, each model, and each pair of models.

They are derived from the folders of the runs. A number that was not measured is None.
"""

from __future__ import annotations

import csv
import itertools
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from vitkit.data import groups_from_file
from vitkit.errors import VitkitError
from vitkit.evaluation import Units, headline_of, images_in_words, read_figures
from vitkit.experiments.comparison_images import ComparisonImages
from vitkit.experiments.comparison_plan import ComparisonJob, Plan, passes_of
from vitkit.experiments.statistics import Difference, Family
from vitkit.system import EVALUATION, GROUPS, METRICS, PREDICTIONS
from vitkit.text import interval_text, restored
from vitkit.training import read_metrics

CorrectByRun = dict[tuple[str, int], npt.NDArray[np.bool_]]  # by (model, seed): whether each image is correct, (n,)


@dataclass(frozen=True)
class RunPredictions:
    """The predictions for n test images of all runs that were trained on the same fraction of the data."""

    fraction: float  # of the training images
    paths: tuple[str, ...]  # of the test images, sorted
    labels: tuple[str, ...]  # of the test images
    is_correct: CorrectByRun  # of the predictions
    units: Units  # the statistically independent units: single images, or groups of related images
    split: str = "test"

    @property
    def described(self) -> str:
        """The number of test images and their split, such as `359 test images`."""
        return images_in_words(len(self.paths), self.split)

    def correct_of(self, model: str) -> npt.NDArray[np.bool_]:
        """Return an array (S, n): whether each of a model's S trainings classifies each of n images correctly."""
        seeds = sorted(seed for name, seed in self.is_correct if name == model)
        return np.stack([self.is_correct[model, seed] for seed in seeds])

    def family(self, models: Sequence[str], *, shares_subsets: bool = False) -> Family:
        """Prepare models for joint statistical tests."""
        correct = np.stack([self.correct_of(model) for model in models])
        return Family(correct, self.units, shares_subsets=shares_subsets)

    @cached_property
    def chance(self) -> float:
        """The accuracy of always predicting the most frequent class."""
        return max(map(self.labels.count, set(self.labels))) / len(self.labels)


def read_predictions(file: Path) -> list[tuple[str, str, str]]:
    """Return the path, the label and the predicted class of each image in a predictions.csv."""
    with file.open(encoding="utf-8", errors="surrogateescape", newline="") as text:
        rows = csv.DictReader(text)
        return [(restored(row["path"]), restored(row["label"]), restored(row["predicted"])) for row in rows]


def read_run_predictions(plan: Plan, out: Path, fraction: float, test_images: ComparisonImages) -> RunPredictions:
    """Read the predictions of all runs on a fraction of the data for the test images that are not left out.

    It is an error if the runs predicted different images.
    """
    is_correct: CorrectByRun = {}
    images: list[tuple[str, str]] = []  # the path and label of each image, the same for all runs
    for job in plan.jobs:
        if job.fraction != fraction:
            continue
        rows = sorted(read_predictions(out / job.folder / PREDICTIONS))
        images_of_run = [(path, label) for path, label, _ in rows]
        if is_correct and images_of_run != images:
            raise VitkitError(
                "experiments.test-images-differ",
                f"{out / job.folder} predicted other images than the runs before it: restore images that were moved or "
                "changed, delete this folder, and continue with --resume",
            )
        images = images_of_run
        is_correct[job.model, job.seed] = np.array([label == predicted for _, label, predicted in rows])
    remaining = [i for i, (path, _) in enumerate(images) if path not in test_images.left_out]
    is_correct = {run: values[remaining] for run, values in is_correct.items()}
    paths = tuple(images[i][0] for i in remaining)
    labels = tuple(images[i][1] for i in remaining)
    groups = groups_from_file(out / plan.jobs[0].folder / GROUPS)
    # An image without a group is a group of its own.
    group_of = np.array([groups.get(path, len(groups) + i) for i, path in enumerate(paths)])
    has_groups = len(set(group_of.tolist())) < len(group_of)
    units = Units.of(len(group_of), group_of if has_groups else None)
    return RunPredictions(fraction, paths, labels, is_correct, units, test_images.split)


def family_of(plan: Plan, predictions: RunPredictions) -> Family:
    """Prepare all models of the plan, in its order, for joint statistical tests on one fraction of the data."""
    jobs = [job for job in plan.jobs if job.fraction == predictions.fraction]
    return predictions.family(plan.models, shares_subsets=any(job.fields.get("max_images") for job in jobs))


# --- Each run and each model ------------------------------------------------------------------------------


def run_figures(job: ComparisonJob, out: Path, gmacs: float | None, predictions: RunPredictions) -> dict[str, Any]:
    """Return the numbers of one run; `gmacs` are the 10^9 multiply-accumulates of a forward pass, None if unknown.

    The accuracy is that of `predictions`, the predictions for the test images. Log loss and calibration error are taken
    from the evaluation at the end of the run. They are None if this evaluation used another number of images.
    """
    folder = out / job.folder
    evaluation = read_figures(folder / EVALUATION)
    headline = headline_of(evaluation)
    has_same_images = headline.images == len(predictions.paths)
    rows = read_metrics(folder / METRICS)
    seconds = rows[-1].get("seconds") if rows else None
    epochs = int(rows[-1]["epoch"]) + 1 if rows else None
    speed = epochs * job.images / seconds if epochs and seconds else None
    method = job.fields["method"]
    views = 1 if method == "probe" else epochs  # of each image; the cost of additional augmented views is not counted
    flops = None
    if gmacs is not None and views is not None:
        flops = 2e9 * gmacs * passes_of(method) * job.images * views
    return {
        "seed": job.seed,
        "fraction": job.fraction,
        "folder": job.folder,
        "training_images": job.images,
        "split": predictions.split,
        "images": len(predictions.paths),
        "accuracy": float(predictions.is_correct[job.model, job.seed].mean()),
        "loss": evaluation.get("loss") if has_same_images else None,
        "ece": evaluation.get("ece") if has_same_images else None,
        "caveats": [caveat.text for caveat in headline.caveats if caveat.kind != "seen"],
        "epochs": epochs,
        "seconds": seconds,
        "train_images_per_s": speed,
        "training_flops": flops,
        "curve": [[int(row["epoch"]) + 1, row["val_acc"]] for row in rows if "val_acc" in row],
    }


def model_figures(
    name: str,
    plan: Plan,
    out: Path,
    by_fraction: Sequence[RunPredictions],
    families: Sequence[Family],
    costs: dict[str, Any],
) -> dict[str, Any]:
    """Return the numbers of a model on the largest fraction of the data, summarised over its seeds.

    Accuracy, loss and calibration error are means; the training speed is a median. The accuracies on all fractions are
    in `by_fraction`. The predictions and the families of all models are given for each fraction, the
    smallest one first. `costs` are the size, operations and speed of this model, as in `costs_of`.
    """
    index = plan.models.index(name)
    predictions = {each.fraction: each for each in by_fraction}
    runs = [run_figures(job, out, costs["gmacs"], predictions[job.fraction]) for job in plan.jobs if job.model == name]
    runs_on_most_data = [run for run in runs if run["fraction"] == plan.fractions[-1]]
    figures: dict[str, Any] = {"name": name}
    for key in ("accuracy", "loss", "ece"):
        values = [run[key] for run in runs_on_most_data]
        figures[key] = None if None in values else statistics.mean(values)
    speeds = [run["train_images_per_s"] for run in runs_on_most_data if run["train_images_per_s"] is not None]
    by_size = zip(by_fraction, families, strict=True)
    return {
        **figures,
        "interval": list(families[-1].interval(index)),
        **costs,
        "train_images_per_s": statistics.median(speeds) if speeds else None,
        "by_fraction": [{"fraction": each.fraction, **family.accuracy_of(index)} for each, family in by_size],
        "caveats": list(dict.fromkeys(text for run in runs for text in run["caveats"])),
        "runs": runs,
    }


# --- Each pair of models ----------------------------------------------------------------------------------


def pair_figures(plan: Plan, predictions: RunPredictions, family: Family) -> list[dict[str, Any]]:
    """Compare each pair of models: the difference in accuracy, intervals, p-values and verdict."""
    compared = list(itertools.combinations(range(family.models), 2))
    rows = []
    for figures, recipe, trained in compare_pairs(plan.models, compared, family, predictions.described):
        a, b = figures["a"], figures["b"]
        better = {"recipe": recipe.better(a, b) if family.seeds > 1 else None, "trained": trained.better(a, b)}
        rows.append({"a": a, "b": b, "fraction": predictions.fraction, **figures, "better": better})
    return rows


def compare_pairs(
    names: Sequence[str],
    compared: Sequence[tuple[int, int]],
    family: Family,
    images: str,
    display_name: Callable[[str], str] = str,
) -> Iterator[tuple[dict[str, Any], Difference, Difference]]:
    """Yield the figures of each pair of models, and their difference with and without the uncertainty from seeds.

    `compared` has the indices of the models in `names` and in the family, `images` a description of the test images,
    and `display_name` returns a name as it appears in a verdict.
    """
    recipes, trained_models = family.differences(compared), family.differences(compared, include_seeds=False)
    for (i, j), recipe, trained in zip(compared, recipes, trained_models, strict=True):
        a, b = names[i], names[j]
        figures = {
            "a": a,
            "b": b,
            "difference": recipe.mean,
            **recipe.to_dict(),
            "trained": trained.to_dict(),
            "verdict": verdict(display_name(a), display_name(b), recipe, trained, family.seeds, images, len(compared)),
        }
        yield figures, recipe, trained


def verdict(a: str, b: str, recipe: Difference, trained: Difference, seeds: int, images: str, pairs: int) -> str:
    """Return a sentence that says which of the models `a` and `b` is better, as trained here and with other seeds.

    `recipe` is their difference in accuracy with the uncertainty from seeds and images, `trained` the one with the
    uncertainty from images only, `images` a description of the test images, and `pairs` the number of compared pairs.
    """
    better = f"{a} is better than {b} here"
    if recipe.mean < 0:
        better = f"{b} is better than {a} here"
        recipe, trained = recipe.reversed(), trained.reversed()
    can_decide = recipe.needed < 1  # no difference exceeds 1, which is 100 points
    only_these = "" if seeds > 1 else "; one seed: this applies to these trained models, not to other trainings"
    if seeds > 1 and recipe.is_distinguished:
        return f"{better}, also with other seeds: {_gain(recipe)}"
    if trained.is_distinguished:
        limits = only_these
        if seeds > 1 and can_decide:
            points = f"{100 * recipe.needed:.1f} points"
            limits = f"; for other seeds this is undecided: with {seeds} seeds it requires {points}"
        elif seeds > 1:
            limits = "; their seeds differ too much to conclude this for other trainings: use more --seeds"
        return f"{better}, as trained: {_gain(trained)}{limits}"
    if trained.needed < 1 and not can_decide:
        return f"{a} and {b} cannot be distinguished: their {seeds} seeds differ too much; use more --seeds"
    given = [images]
    if seeds > 1:
        given.append(f"{seeds} seeds")
    if pairs > 1:
        given.append(f"{pairs} pairs compared")
    *first, last = given
    conditions = f"{', '.join(first)} and {last}" if first else last
    needed = f": they would have to differ by {100 * recipe.needed:.1f} points" if can_decide else ""
    return f"{a} and {b} cannot be distinguished with {conditions}{needed}{only_these}"


def _gain(difference: Difference) -> str:
    low, high = (100 * end for end in difference.interval)
    return f"+{100 * difference.mean:.1f} points, 95 % {low:.1f} to {high:.1f}"


# --- All models together ----------------------------------------------------------------------------------


def best_model(plan: Plan, family: Family) -> dict[str, Any]:
    """Return the model with the highest accuracy, and the accuracy to be expected on other images with other seeds.

    The measured accuracy is too optimistic, because the model was selected on the same images and seeds.
    """
    winner = family.winner()
    name = plan.models[winner.index]
    bounds = f"(95 %: {interval_text([100 * end for end in winner.interval], 1)})"
    text = f"{name} is the best here: {100 * winner.measured:.1f} %"
    if family.models > 1:
        text += f" measured, {100 * winner.corrected:.1f} % expected {bounds} after correction for its selection"
        text += f" as the best of {family.models}"
    else:
        text += f" {bounds}"
    return {**winner.to_dict(name, family.models), "sentence": text}


def seed_variation(plan: Plan, family: Family) -> dict[str, Any] | None:
    """Return the standard deviation of accuracy between seeds, by model and as a sentence; None for one seed."""
    if family.seeds == 1:
        return None
    variances = np.maximum(family.seed_variance - family.chance_variance, 0.0)  # (M,)
    trainings = family.models * family.seeds
    text = f"the seed changes the accuracy by {100 * float(variances.mean()) ** 0.5:.1f} points (standard deviation)"
    if family.models > 1:
        text += f", estimated from all {trainings} trainings"
    return {
        "by_model": {name: float(variance) ** 0.5 for name, variance in zip(plan.models, variances, strict=True)},
        "trainings": trainings,
        "sentence": text,
    }


def findings_of(
    models: Sequence[dict[str, Any]], predictions: RunPredictions, test_images: ComparisonImages
) -> list[str]:
    """Return sentences that state limitations of the results, and name the models that are no better than chance."""
    at_chance = [row["name"] for row in models if row["interval"][0] <= predictions.chance]
    if not at_chance:
        return test_images.findings()
    are = "is" if len(at_chance) == 1 else "are"
    chance = f"always predicting the most frequent class ({100 * predictions.chance:.1f} %)"
    return [*test_images.findings(), f"{', '.join(at_chance)} {are} not distinguished from chance: {chance}"]


def facts_of_test(plan: Plan, predictions: RunPredictions, test_images: ComparisonImages) -> dict[str, Any]:
    """Return the facts about the test that comparison.json and lab.json contain."""
    return {
        "seeds": list(plan.seeds),
        "split": test_images.split,
        "chosen_on": list(test_images.chosen_on),
        "test_images": len(predictions.paths),
        "left_out": test_images.to_dict(),
        "findings": test_images.findings(),
        "test_hash": plan.test_hash,
        "chance": predictions.chance,
        "notes": list(plan.notes),
    }
