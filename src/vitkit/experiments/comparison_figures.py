"""Compute the numbers of a comparison ("figures"): those of each run, each model, and each pair of models.

`stress_figures` classifies corrupted pictures. All other numbers are derived from the folders of the runs. A number
that was not measured is None.
"""

from __future__ import annotations

import csv
import hashlib
import io
import itertools
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageFilter

from vitkit.data import Preprocess, groups_from_file
from vitkit.errors import VitkitError
from vitkit.evaluation import Units, counted_figures, headline_of, images_in_words, read_figures
from vitkit.experiments.comparison_plan import ComparisonJob, Plan, passes_of
from vitkit.experiments.comparison_request import GRID, STRESSES
from vitkit.experiments.comparison_runs import COSTS
from vitkit.experiments.judging import ComparisonImages
from vitkit.experiments.statistics import Difference, Family
from vitkit.model_folder import read_description
from vitkit.system import EVALUATION, GROUPS, METRICS, PREDICTIONS, read_json, receiver, reporting_within, write_json
from vitkit.text import interval_text, restored
from vitkit.training import read_metrics

GOAL = 0.9  # the time to this validation accuracy is reported
Answers = dict[tuple[str, int], npt.NDArray[np.bool_]]  # by (model, seed): whether each image is correct, (n,)


@dataclass(frozen=True)
class RunPredictions:
    """The predictions for n test images of all runs that were trained on the same fraction of the data."""

    fraction: float  # of the training images
    paths: tuple[str, ...]  # of the test images, sorted
    labels: tuple[str, ...]  # of the test images
    answers: Answers
    units: Units  # the statistically independent units: single images, or groups of related images
    split: str = "test"

    @property
    def described(self) -> str:
        """The number of test images and their split, such as `359 test images`."""
        return images_in_words(len(self.paths), self.split)

    def of(self, model: str) -> npt.NDArray[np.bool_]:
        """Return an array (S, n): whether each of a model's S trainings classifies each of n images correctly."""
        return np.stack([answers for (name, _), answers in sorted(self.answers.items()) if name == model])

    @cached_property
    def chance(self) -> float:
        """The accuracy of always predicting the most frequent class."""
        return max(map(self.labels.count, set(self.labels))) / len(self.labels)


def read_run_predictions(plan: Plan, out: Path, fraction: float, judging: ComparisonImages) -> RunPredictions:
    """Read the test predictions of all runs on a fraction of the data, without the images that `judging` leaves out."""
    answers: Answers = {}
    known: tuple[tuple[str, ...], tuple[str, ...]] | None = None
    for job in (job for job in plan.jobs if job.fraction == fraction):
        file = out / job.folder / PREDICTIONS
        try:
            with file.open(encoding="utf-8", errors="surrogateescape", newline="") as text:
                rows = sorted((restored(row["path"]), row["label"], row["predicted"]) for row in csv.DictReader(text))
        except (KeyError, TypeError, csv.Error, FileNotFoundError) as error:
            raise VitkitError(
                "experiments.predictions-damaged",
                f"{file} is missing or damaged: delete its folder, then continue with --resume",
            ) from error
        paths, labels = tuple(path for path, _, _ in rows), tuple(label for _, label, _ in rows)
        if known is not None and known != (paths, labels):
            raise VitkitError(
                "experiments.test-images-differ",
                f"{out / job.folder} predicted other images than the runs before it: restore images that were moved or "
                "changed, delete this folder, and continue with --resume",
            )
        known = (paths, labels)
        answers[job.model, job.seed] = np.array([label == predicted for _, label, predicted in rows])
    assert known is not None
    kept = [place for place, path in enumerate(known[0]) if path not in judging.left_out]
    paths, labels = (tuple(values[place] for place in kept) for values in known)
    groups = groups_from_file(out / plan.jobs[0].folder / GROUPS)
    # An image without a group is a group of its own.
    group_of = np.array([groups.get(path, len(groups) + place) for place, path in enumerate(paths)])
    has_groups = len(set(group_of.tolist())) < len(group_of)
    units = Units.of(len(group_of), group_of if has_groups else None)
    answers = {run: is_right[kept] for run, is_right in answers.items()}
    return RunPredictions(fraction, paths, labels, answers, units, judging.split)


@dataclass(frozen=True)
class ComparedFamily:
    """The models that were trained on one fraction of the data, prepared for joint statistical tests."""

    judged: RunPredictions
    family: Family  # models that share the same runs occur once
    place: dict[str, int]  # the index of each model in `family`


def families_of(plan: Plan, judged: Sequence[RunPredictions]) -> list[ComparedFamily]:
    """Prepare the models for joint statistical tests, separately for each fraction of the data."""
    families = []
    for own in judged:
        jobs = [job for job in plan.jobs if job.fraction == own.fraction]
        folders = {name: tuple(sorted(job.folder for job in jobs if job.model == name)) for name in plan.models}
        name_of = {each: name for name, each in reversed(folders.items())}  # the first of those that share a folder
        different = list(dict.fromkeys(folders.values()))
        right = np.stack([own.of(name_of[each]) for each in different])
        shares_subsets = any(job.fields.get("max_images") for job in jobs)
        place = {name: different.index(each) for name, each in folders.items()}
        families.append(ComparedFamily(own, Family(right, own.units, shares_subsets=shares_subsets), place))
    return families


# --- Each run and each model ------------------------------------------------------------------------------


def of_run(job: ComparisonJob, out: Path, gmacs: float | None, judged: RunPredictions) -> dict[str, Any]:
    """Return the numbers of one run; `gmacs` are the 10^9 multiply-accumulates of a forward pass, None if unknown.

    The accuracy is computed from the predictions for the test images in `judged`. Log loss and calibration error are
    taken from the evaluation at the end of the run. They are None if this evaluation used another number of images.
    """
    folder = out / job.folder
    figures = read_figures(folder / EVALUATION)
    quoted, counted = headline_of(figures), counted_figures(figures)
    counted = counted if quoted.images == len(judged.paths) else {}
    rows = read_metrics(folder / METRICS)
    seconds = rows[-1].get("seconds") if rows else None
    epochs = int(rows[-1]["epoch"]) + 1 if rows else None
    costs = out / COSTS / f"{folder.name}.json"
    validated = [row for row in rows if "val_acc" in row]
    goal = next((row for row in validated if row["val_acc"] >= GOAL), {})
    best = max(validated, key=lambda row: row["val_acc"], default={})
    method = job.fields["method"]
    views = 1 if method == "probe" else epochs  # of each image; the cost of additional augmented views is not counted
    flops = None if gmacs is None or views is None else 2e9 * gmacs * passes_of(method) * job.images * views
    return {
        "seed": job.seed,
        "fraction": job.fraction,
        "folder": job.folder,
        "training_images": job.images,
        "split": judged.split,
        "images": len(judged.paths),
        "accuracy": float(judged.answers[job.model, job.seed].mean()),
        "loss": counted.get("loss"),
        "ece": counted.get("ece"),
        "caveats": [caveat.text for caveat in quoted.caveats if caveat.kind != "seen"],
        "epochs": epochs,
        "seconds": seconds,
        "train_images_per_s": epochs * job.images / seconds if epochs and seconds else None,
        "training_flops": flops,
        "epochs_to_90": int(goal["epoch"]) + 1 if goal else None,
        "seconds_to_90": goal.get("seconds"),
        "epochs_to_best": int(best["epoch"]) + 1 if best else None,
        "seconds_to_best": best.get("seconds"),
        "peak_memory": read_json(costs).get("peak_memory") if costs.is_file() else None,
        "curve": [[int(row["epoch"]) + 1, row["val_acc"]] for row in validated],
    }


def of_model(
    name: str, plan: Plan, out: Path, families: Sequence[ComparedFamily], costs: dict[str, Any]
) -> dict[str, Any]:
    """Return the numbers of a model on the largest fraction of the data, summarised over its seeds.

    Accuracy, loss and calibration error are means; durations, training speed and memory are medians. The accuracies on
    all fractions are in `by_fraction`. `families` are all models at each fraction, the smallest fraction first, and
    `costs` the size, operations and speed of this model, as in `costs_of`.
    """
    of_fraction = {family.judged.fraction: family.judged for family in families}
    runs = [of_run(job, out, costs["gmacs"], of_fraction[job.fraction]) for job in plan.jobs if job.model == name]
    last = [run for run in runs if run["fraction"] == plan.fractions[-1]]
    figures: dict[str, Any] = {"name": name}
    for key in ("accuracy", "loss", "ece"):
        values = [run[key] for run in last]
        figures[key] = None if None in values else statistics.mean(values)
    figures["interval"] = list(families[-1].family.interval(families[-1].place[name]))
    figures |= costs
    for key in ("train_images_per_s", "peak_memory", "epochs_to_best", "seconds_to_best"):
        values = [run[key] for run in last if run[key] is not None]
        figures[key] = statistics.median(values) if values else None
    reached = [run for run in last if run["epochs_to_90"] is not None]
    figures["reached_90"] = len(reached)
    for key in ("epochs_to_90", "seconds_to_90"):
        values = [run[key] for run in reached if run[key] is not None]
        figures[key] = statistics.median(values) if len(reached) == len(last) and values else None
    figures["by_fraction"] = [
        {
            "fraction": family.judged.fraction,
            "accuracy": float(family.family.accuracy[family.place[name]]),
            "interval": list(family.family.interval(family.place[name])),
        }
        for family in families
    ]
    caveats = list(dict.fromkeys(text for run in runs for text in run["caveats"]))
    return {**figures, "caveats": caveats, "runs": runs}


# --- Each pair of models ----------------------------------------------------------------------------------


def pairs_of(plan: Plan, models: ComparedFamily) -> list[dict[str, Any]]:
    """Compare each pair of models: the difference in accuracy, intervals, p-values and verdict."""
    judged, family, place = models.judged, models.family, models.place
    compared = list(itertools.combinations(range(family.models), 2))  # models that share their runs count once
    recipes = dict(zip(compared, family.differences(compared), strict=True))
    trained = dict(zip(compared, family.differences(compared, of_recipes=False), strict=True))
    rows = []
    for a, b in itertools.combinations(plan.models, 2):
        row: dict[str, Any] = {"a": a, "b": b, "fraction": judged.fraction}
        if place[a] == place[b]:
            none = {"interval": [0.0, 0.0], "p": 1.0, "p_alone": 1.0, "needed": None}
            row |= {"difference": 0.0, **none, "trained": none, "better": {"recipe": None, "trained": None}}
            text = f"{a} and {b} are the same configuration: tied, difference exactly 0"
        else:
            key = (place[a], place[b])
            recipe, of_these = (
                differences[key] if key in differences else differences[key[::-1]].reversed()
                for differences in (recipes, trained)
            )
            row |= {"difference": recipe.mean, **recipe.numbers(), "trained": of_these.numbers()}
            row["better"] = {
                "recipe": recipe.better(a, b) if family.seeds > 1 else None,
                "trained": of_these.better(a, b),
            }
            text = verdict(a, b, recipe, of_these, family.seeds, judged.described, len(compared))
        rows.append({**row, "verdict": text})
    return rows


def verdict(a: str, b: str, recipe: Difference, trained: Difference, seeds: int, images: str, pairs: int) -> str:
    """Return a sentence that says which of two models is better, both as trained here and with other seeds.

    Args:
        a: the first model.
        b: the second model.
        recipe: the difference in accuracy between the recipes, with the uncertainty from seeds and images.
        trained: the difference in accuracy between these trained models, with the uncertainty from images only.
        seeds: the number of seeds.
        images: a description of the test images.
        pairs: the number of pairs that are compared.
    """
    better, gain_of_recipe, gain_of_trained = f"{a} is better than {b} here", _gain(recipe), _gain(trained)
    if recipe.mean < 0:
        better = f"{b} is better than {a} here"
        gain_of_recipe, gain_of_trained = _gain(recipe.reversed()), _gain(trained.reversed())
    can_decide = recipe.needed < 1  # no difference exceeds 1, which is 100 points
    alone = "" if seeds > 1 else "; one seed: this applies to these trained models, not to other trainings"
    if seeds > 1 and recipe.is_distinguished:
        return f"{better}, also with other seeds: {gain_of_recipe}"
    if seeds > 1 and trained.is_distinguished:
        rest = f"for other seeds this is undecided: with {seeds} seeds it requires {100 * recipe.needed:.1f} points"
        if not can_decide:
            rest = "their seeds differ too much to conclude this for other trainings: use more --seeds"
        return f"{better}, as trained: {gain_of_trained}; {rest}"
    if trained.is_distinguished:
        return f"{better}, as trained: {gain_of_trained}{alone}"
    if trained.needed < 1 and not can_decide:
        return f"{a} and {b} cannot be distinguished: their {seeds} seeds differ too much; use more --seeds"
    *conditions, last = [
        images,
        *([f"{seeds} seeds"] if seeds > 1 else []),
        *([f"{pairs} pairs compared"] if pairs > 1 else []),
    ]
    given = f"{', '.join(conditions)} and {last}" if conditions else last
    least = f": they would have to differ by {100 * recipe.needed:.1f} points" if can_decide else ""
    return f"{a} and {b} cannot be distinguished with {given}{least}{alone}"


def _gain(difference: Difference) -> str:
    low, high = (100 * end for end in difference.interval)
    return f"+{100 * difference.mean:.1f} points, 95 % {low:.1f} to {high:.1f}"


# --- All models together ----------------------------------------------------------------------------------


def best_of(plan: Plan, models: ComparedFamily) -> dict[str, Any]:
    """Return the model with the highest accuracy, and the accuracy to be expected on other images with other seeds.

    The measured accuracy is too optimistic, because the model was selected on the same images and seeds.
    """
    winner, family = models.family.winner(), models.family
    name = next(name for name in plan.models if models.place[name] == winner.index)
    bounds = f"(95 %: {interval_text([100 * end for end in winner.interval], 1)})"
    shown = f"{name} is the best here: {100 * winner.measured:.1f} %"
    if family.models > 1:
        shown += f" measured, {100 * winner.corrected:.1f} % expected {bounds} after correction for its selection"
        shown += f" as the best of {family.models}"
    else:
        shown += f" {bounds}"
    return {
        "model": name,
        "of": family.models,
        "measured": winner.measured,
        "expected": winner.corrected,
        "interval": list(winner.interval),
        "sentence": shown,
    }


def luck_of(plan: Plan, models: ComparedFamily) -> dict[str, Any] | None:
    """Return the standard deviation of accuracy between seeds, by model and as a sentence; None for one seed."""
    family = models.family
    if family.seeds == 1:
        return None
    variances = np.maximum(family.seed_variance - family.chance_variance, 0.0)  # (M,)
    trainings = family.models * family.seeds
    shown = f"the seed changes the accuracy by {100 * float(variances.mean()) ** 0.5:.1f} points (standard deviation)"
    if family.models > 1:
        shown += f", estimated from all {trainings} trainings"
    return {
        "by_model": {name: float(variances[models.place[name]]) ** 0.5 for name in plan.models},
        "trainings": trainings,
        "sentence": shown,
    }


def findings_of(models: Sequence[dict[str, Any]], judged: RunPredictions, judging: ComparisonImages) -> list[str]:
    """Return sentences that state limitations of the results, and name the models that are no better than chance."""
    lost = [row["name"] for row in models if row["interval"][0] <= judged.chance]
    if not lost:
        return judging.findings()
    are = "is" if len(lost) == 1 else "are"
    always = f"always predicting the most frequent class ({100 * judged.chance:.1f} %)"
    return [*judging.findings(), f"{', '.join(lost)} {are} not distinguished from chance: {always}"]


def facts_of_test(plan: Plan, judged: RunPredictions, judging: ComparisonImages) -> dict[str, Any]:
    """Return what every experiment of the lab says about its test."""
    return {
        "seeds": list(plan.seeds),
        "split": judging.split,
        "chosen_on": list(judging.chosen_on),
        "test_images": len(judged.paths),
        "left_out": judging.to_dict(),
        "findings": judging.findings(),
        "test_hash": plan.test_hash,
        "chance": judged.chance,
        "notes": list(plan.notes),
    }


# --- Accuracy under stress ------------------------------------------------------------------------------------

# Each picture is resized to one size for all models, and then corrupted with increasing strength. Afterwards, each
# model preprocesses it like any other picture. Therefore all models classify the same pictures, whatever their input
# size. The grid of patches covers the whole picture, so that a model which crops pictures may not see all cells of the
# grid.
#
# Dropped and shuffled patches follow Naseer et al. (arXiv 2105.10497, sec. 3.1 and 3.3): cells of a grid are blackened,
# or permuted.

_Change = Callable[[Image.Image, float, np.random.Generator], Image.Image]


def _drop(picture: Image.Image, part: float, rng: np.random.Generator) -> Image.Image:
    pixels = np.array(picture)
    rows, columns = (np.linspace(0, side, GRID + 1).round().astype(int) for side in pixels.shape[:2])
    for cell in rng.permutation(GRID**2)[: round(part * GRID**2)].tolist():
        y, x = divmod(cell, GRID)
        pixels[rows[y] : rows[y + 1], columns[x] : columns[x + 1]] = 0
    return Image.fromarray(pixels)


def _shuffle(picture: Image.Image, side: float, rng: np.random.Generator) -> Image.Image:
    # The pixels at the right and lower edges that fill no cell stay in place.
    pixels, k = np.array(picture), int(side)
    h, w = (length // k for length in pixels.shape[:2])
    whole = pixels[: h * k, : w * k]
    cells = whole.reshape(k, h, k, w, 3).transpose(0, 2, 1, 3, 4).reshape(k * k, h, w, 3)
    moved = cells[rng.permutation(k * k)].reshape(k, k, h, w, 3).transpose(0, 2, 1, 3, 4)
    whole[:] = moved.reshape(h * k, w * k, 3)
    return Image.fromarray(pixels)


def _remove_texture(picture: Image.Image, width: float, _: np.random.Generator) -> Image.Image:
    reach = max(round(width / 200 * min(picture.size)), round(width / 2))  # at least 1, 2, 3 pixels in small pictures
    return picture.filter(ImageFilter.MedianFilter(2 * reach + 1))


def _paste(picture: Image.Image, part: float, rng: np.random.Generator) -> Image.Image:
    # The rectangle covers the fraction `part` of the picture's area, and has the picture's aspect ratio.
    pixels = np.array(picture)
    height, width = (max(round(side * part**0.5), 1) for side in pixels.shape[:2])
    top, left = (int(rng.integers(0, s - length + 1)) for s, length in zip(pixels.shape, (height, width), strict=False))
    pixels[top : top + height, left : left + width] = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def _compress(picture: Image.Image, lost: float, _: np.random.Generator) -> Image.Image:
    stored = io.BytesIO()
    picture.save(stored, "JPEG", quality=100 - int(lost))
    with Image.open(stored) as opened:
        return opened.convert("RGB")


CHANGES: dict[str, _Change] = {
    "occlusion": _drop,
    "shuffle": _shuffle,
    "texture": _remove_texture,
    "patch": _paste,
    "jpeg": _compress,
    "blur": lambda picture, sigma, _: picture.filter(ImageFilter.GaussianBlur(sigma / 100 * min(picture.size))),
}


def at_one_size(picture: Image.Image, short_side: int) -> Image.Image:
    """Resize a picture so that its shorter side has `short_side` pixels."""
    scale = short_side / min(picture.size)
    width, height = (max(round(side * scale), short_side) for side in picture.size)
    return picture.resize((width, height), Image.Resampling.BICUBIC)


def changed(picture: Image.Image, name: str, strength: float, key: str) -> Image.Image:
    """Corrupt a picture by one kind of stress, such as blur. The first strength leaves it unchanged.

    `key` is the text that seeds the random numbers, such as a seed and the image's path. The same key always gives the
    same result, and all strengths use the same random numbers.
    """
    stress = STRESSES[name]
    if strength == stress.strengths[0]:
        return picture
    digest = hashlib.sha256(f"{name} {key}".encode(errors="surrogateescape")).digest()
    return CHANGES[name](picture, strength, np.random.default_rng(list(digest)))


def variants(picture: Image.Image, names: Sequence[str], key: str) -> Iterator[Image.Image]:
    """Yield the unchanged picture, then a corrupted picture for each stress and each strength except the first."""
    yield picture
    for name in names:
        for strength in STRESSES[name].strengths[1:]:
            yield changed(picture, name, strength, key)


def stress_figures(
    plan: Plan, out: Path, judged: RunPredictions, names: Sequence[str], device: str
) -> list[dict[str, Any]]:
    """Return the accuracy of each model under each of these stresses and strengths, with 95 % intervals."""
    if not names:
        return []
    folders = {(job.model, job.seed): job.folder for job in plan.jobs if job.fraction == plan.fractions[-1]}
    distinct = list(dict.fromkeys(folders.values()))
    side = max(Preprocess.from_dict(read_description(out / run)["preprocess"]).short_side for run in distinct)
    answers = {}
    for number, folder in enumerate(distinct, start=1):
        with reporting_within(f"stress, run {number} of {len(distinct)}"):
            answers[folder] = _answers_under_stress(out, folder, judged.paths, names, side, plan.seeds[0], device)
    trainings = {model: tuple(folders[model, seed] for seed in plan.seeds) for model in plan.models}
    different = list(dict.fromkeys(trainings.values()))  # models that share their runs count once
    rows = []
    for name in names:
        stress = STRESSES[name]
        families = []
        for place, strength in enumerate(stress.strengths):
            key = "" if place == 0 else f"{name} {strength:g}"
            right = np.array([[answers[folder][key] for folder in each] for each in different])  # (M, S, n)
            families.append(Family(right, judged.units))
        models = {
            model: {
                "accuracy": [float(family.accuracy[different.index(each)]) for family in families],
                "interval": [list(family.interval(different.index(each))) for family in families],
            }
            for model, each in trainings.items()
        }
        row = {"kind": name, "title": stress.title, "unit": stress.unit, "about": stress.about}
        rows.append({**row, "short_side": side, "strengths": list(stress.strengths), "models": models})
    return rows


def _answers_under_stress(
    out: Path, folder: str, paths: Sequence[str], names: Sequence[str], side: int, seed: int, device: str
) -> dict[str, npt.NDArray[np.bool_]]:
    """Return whether a run classifies each of n images correctly, both unchanged and under each stress.

    The shorter side of each picture is first resized to `side` pixels. The result is cached in a file.

    Returns:
        Arrays (n,) by key: the empty string for unchanged pictures, otherwise stress and strength, such as `blur 2`.
    """
    file = out / "stress" / f"{Path(folder).name}.json"
    keys = ["", *(f"{name} {strength:g}" for name in names for strength in STRESSES[name].strengths[1:])]
    # For each key, a character for each image: 1 if it is classified correctly, otherwise 0.
    stored: dict[str, Any] = {}
    with suppress(OSError, VitkitError):  # then the answers are computed again
        stored = read_json(file)
    if not all(isinstance(stored.get(key), str) and len(stored[key]) == len(paths) for key in keys):
        import torch

        from vitkit.data import images_of_run, picture_of, refuse_changed
        from vitkit.system import SPLIT
        from vitkit.weights import load

        classifier = load(out / folder).to(device)
        refuse_changed(out / folder / SPLIT, "leave out --stress")
        table = images_of_run(out / folder / SPLIT)
        place = {path: i for i, path in enumerate(table.paths)}
        columns = []
        for done, path in enumerate(paths, start=1):
            with picture_of(table.file(place[path]), side) as picture:
                pixels = at_one_size(picture.image, side)
            images = np.stack([classifier.preprocess(each) for each in variants(pixels, names, f"{seed} {path}")])
            predicted = classifier.logits(torch.from_numpy(images)).argmax(dim=1).cpu().numpy()  # (V,)
            columns.append(predicted == classifier.classes.index(table.name_of(place[path])))
            receiver()("pictures made harder", done, len(paths))
        rows = np.stack(columns, axis=1).tolist()  # (V, n)
        stored = {key: "".join("01"[is_right] for is_right in row) for key, row in zip(keys, rows, strict=True)}
        file.parent.mkdir(exist_ok=True)
        write_json(file, stored)
    return {key: np.array([bit == "1" for bit in stored[key]]) for key in keys}
