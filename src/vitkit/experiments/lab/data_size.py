"""Pre-train models on parts of one source of images, and transfer them to another (sec. 4.3, Figures 3 and 4).

Every model is pre-trained with labels on 1/9, 1/3 and all images of the first source. It is then evaluated on the other
source in two ways: by fine-tuning, and by least squares on the frozen features of a few images of each class. Seeds are
paired: with the same seed, all models are pre-trained on the same images.
"""

from __future__ import annotations

import csv
import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from vitkit.data import held_out_split, read_source, split_from_file
from vitkit.errors import VitkitError
from vitkit.evaluation import images_in_words
from vitkit.experiments.comparison_figures import (
    ComparedFamily,
    RunPredictions,
    facts_of_test,
    families_of,
    pairs_of,
    read_run_predictions,
)
from vitkit.experiments.comparison_plan import ComparisonJob, Plan
from vitkit.experiments.comparison_request import PLANNED, names_of
from vitkit.experiments.judging import after_training, hash_of_images
from vitkit.experiments.lab import TUNING, AblationVariant, PretrainingSizes, result_of
from vitkit.experiments.lab.ablations import draw, fit_on
from vitkit.experiments.statistics import LEVEL, Family
from vitkit.model import config_for, is_network_name
from vitkit.profiling import UTILISATION, core_days, describe
from vitkit.system import SPLIT, receiver, without_place
from vitkit.text import plural
from vitkit.training import Recipe, Run, SplitImages, prepared, without_fields_of_vits
from vitkit.verbs import Result

SIZES = (1 / 9, 1 / 3, 1.0)  # fractions of the pre-training images
SHOTS = 5  # images of each class, as in Figure 4
RESNET = "custom:bit_resnet_micro"  # about as large as the ViT
HALVES = ("upstream.csv", "downstream.csv")  # lists of the images in each half of the classes
_LESS = {"epochs": 1 / 3, "lr": 1 / 3}  # factors for a fine-tuning, relative to the pre-training


@dataclass(frozen=True)
class Transfer:
    """The two sources of images: `upstream` is for the pre-training, and `downstream` for the evaluation."""

    upstream: str
    downstream: str


def halve(data: str, folder: Path) -> Transfer:
    """Split a source of images into two sources with different classes, and write a CSV list of each into `folder`.

    Every second class is for the pre-training, and the others are for the evaluation.

    Raises:
        VitkitError: there are fewer than four classes, an image can have several classes, or the images are in an
            archive.
    """
    table = read_source(data)
    table.task.require_single(f"{data}: images with several classes each cannot be halved by class; set --upstream")
    if len(table.classes) < 4 or table.storage is not None:
        why = "its images are in an archive" if table.storage is not None else f"it has {len(table.classes)} classes"
        raise VitkitError(
            "experiments.data-not-halved",
            f"{data} cannot be halved by class, since {why}: set the images to pre-train on with --upstream",
        )
    for half, name in enumerate(HALVES):
        rows = [i for i in range(len(table)) if table.labels[i] % 2 == half]
        with (folder / name).open("w", encoding="utf-8", newline="", errors="surrogateescape") as text:
            writer = csv.writer(text, lineterminator="\n")
            writer.writerow(("path", "label"))
            writer.writerows((table.root / table.paths[i], table.name_of(i)) for i in rows)
    return Transfer(*(str(folder / name) for name in HALVES))


def plan_sizes(
    transfer: Transfer,
    models: str,
    base: Mapping[str, Any],
    fields_of: Callable[[Mapping[str, Any], AblationVariant], Mapping[str, Any]],
    seeds: int,
    here: str,
) -> tuple[Plan, list[dict[str, Any]], list[int]]:
    """Plan all pre-trainings and fine-tunings: the plan, a description of each model, and the images of each part.

    `models` are names separated by commas, and `base` is the recipe that all trainings share, without a model.
    `fields_of` (base, variant) returns the recipe of a variant; it raises an error if the user has set a field that the
    experiment varies. `here` stands for the experiment's folder in paths of weights.
    """
    names, seed = names_of(models), base.get("seed", 0)
    if len(set(names)) < len(names):
        raise VitkitError(
            "experiments.model-twice", f"--model {','.join(names)} has a model twice: leave out one of them"
        )
    side = next((config_for(name).image_size[0] for name in names if not is_network_name(name)), None)
    first: tuple[Run, Run] | None = None
    described, notes, jobs = [], [], []
    for place, name in enumerate(names):
        receiver()("checking the models", place, len(names))
        sized = {"image_size": side} if is_network_name(name) and side and not base.get("image_size") else {}
        requested = {**base, **sized, "model": name, "weights": "none", "split_seed": base.get("split_seed", seed)}
        asked, left_out = without_fields_of_vits(Recipe.of(requested, PLANNED))
        shared = asked.set_fields()
        notes += [f"{name}: {reason}" for reason in left_out]
        try:
            starts = [prepared(asked.complete({"data": data})) for data in (transfer.upstream, transfer.downstream)]
        except VitkitError as error:
            raise VitkitError(error.code, f"{name}: {error}") from error
        first = first or (starts[0], starts[1])
        info = describe(starts[1].config)
        described.append({"name": name, "parameters": info.parameters, "gmacs": info.gmacs})
        images = [_split_images(start).images.table.splits.count("train") for start in starts]
        classes = starts[0].config.num_classes
        if images[0] < (least := math.ceil((classes - 0.5) / SIZES[0])):  # the smallest part has one of each class
            raise VitkitError(
                "experiments.images-few",
                f"{transfer.upstream} has {images[0]} training images, and a ninth of them cannot have one of each of "
                f"its {classes} classes: pre-train on at least {least}",
            )
        counts = [max(round(size * images[0]), 1) for size in SIZES]
        for size, count in zip(SIZES, counts, strict=True):
            subset = {"max_images": count} if count < images[0] else {}
            epochs = {"epochs": max(round(starts[0].recipe.epochs / size), 1)}  # the same number of steps for each part
            upstream = {**shared, **subset, **epochs, "data": transfer.upstream, "method": starts[0].recipe.method}
            plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name)
            for run_seed in range(seed, seed + seeds):
                folder = f"runs/{place + 1}-{plain}-{count}-seed{run_seed}"
                weights = {"data": transfer.downstream, "weights": f"{here}/{folder}-pretrained"}
                tuned = fields_of(shared, AblationVariant(name, {**TUNING, **weights}, times=_LESS))
                tuned = without_fields_of_vits(Recipe.of(tuned, PLANNED))[0].set_fields()
                before, after = ({**fields, "seed": run_seed} for fields in (upstream, tuned))
                label, encoder = f"{name}, pre-training", f"{folder}-pretrained"
                jobs.append(ComparisonJob(label, run_seed, size, count, before, encoder))
                jobs.append(ComparisonJob(name, run_seed, size, images[1], after, folder))
    assert first is not None
    upstream_images, downstream = map(_split_images, first)
    known = set(upstream_images.images.contents.values())
    if shared_pictures := sum(content in known for content in downstream.images.contents.values()):
        raise VitkitError(
            "experiments.sources-overlap",
            f"{shared_pictures} pictures are in both {transfer.upstream} and {transfer.downstream}: pre-train on other "
            "images",
        )
    notes += [note for start in first for note in (*start.source.unmatched, *start.source.corrections)]
    jobs.sort(key=lambda job: (job.seed, job.fraction))
    plan = Plan(
        {"data": transfer.downstream, "upstream": transfer.upstream},
        tuple(names),
        tuple(range(seed, seed + seeds)),
        SIZES,
        tuple(jobs),
        hash_of_images(downstream, held_out_split(downstream.images.table)),
        tuple(dict.fromkeys(notes)),
    )
    return plan, described, counts


def _split_images(start: Run) -> SplitImages:
    (images,) = start.parts
    return images


# --- The result -------------------------------------------------------------------------------------------


def conclude(experiment: PretrainingSizes, plan: Plan, begun: Mapping[str, Any], out: Path) -> Result:
    tuning = replace(plan, jobs=tuple(job for job in plan.jobs if job.model in plan.models))
    judging = after_training(((job.model, out / job.folder) for job in tuning.jobs), plan.test_hash)
    judging.check()
    judged = [read_run_predictions(tuning, out, size, judging) for size in plan.fractions]
    families = families_of(tuning, judged)
    few = [_few_shot_family(tuning, out, each) for each in judged]
    counts = begun["images"]
    models = []
    for place, row in enumerate(begun["variants"]):
        by_size = [
            {
                "fraction": size,
                "images": count,
                "fine_tuned": _measured(family.family, family.place[row["name"]]),
                "few_shot": _measured(shots, place),
            }
            for size, count, family, shots in zip(SIZES, counts, families, few, strict=True)
        ]
        models.append({**row, "by_size": by_size})
    pairs = [pair for family in families for pair in pairs_of(tuning, family)]
    figures = {
        **{name: begun[name] for name in ("vitkit", "experiment", "command")},
        "data": without_place(plan.arguments["data"]),
        "upstream": without_place(plan.arguments["upstream"]),
        "sentence": _sentence(plan, counts, families, judged),
        "models": models,
        "pairs": pairs,
        "shots": SHOTS,
        **facts_of_test(plan, judged[-1], judging),
        "differs": experiment.differs,
    }
    return _shown(experiment, figures, out)


def _measured(family: Family, place: int) -> dict[str, Any]:
    return {"accuracy": float(family.accuracy[place]), "interval": list(map(float, family.interval(place)))}


def _few_shot_family(plan: Plan, out: Path, judged: RunPredictions) -> Family:
    # Each pre-trained model is evaluated by least squares on the frozen features of `SHOTS` images of each class.
    from vitkit.weights import load

    right: dict[str, list[npt.NDArray[np.bool_]]] = {name: [] for name in plan.models}
    for name, job in itertools.product(plan.models, sorted(plan.jobs, key=lambda job: job.seed)):
        if job.model != name or job.fraction != judged.fraction:
            continue
        classifier, table = load(out / f"{job.folder}-pretrained"), split_from_file(out / job.folder / SPLIT)
        train = table.of_split("train")
        labels = np.array(train.labels)
        chosen = draw(labels, SHOTS, job.seed)
        places = [*(train.file(int(i)) for i in chosen), *(table.at(path) for path in judged.paths)]
        features = []
        for path, outcome in classifier.embed(places, "head"):
            if isinstance(outcome, str):
                raise VitkitError("experiments.image-unreadable", f"{path}: {outcome}")
            features.append(outcome)
            receiver()("features of frozen models", len(features), len(places))
        x = np.stack(features).astype(np.float64)  # (n, D)
        predicted = fit_on(x[: len(chosen)], labels[chosen], x[len(chosen) :], len(table.classes))
        right[name].append(predicted == np.array([table.classes.index(label) for label in judged.labels]))
    return Family(np.array(list(right.values())), judged.units)  # (M, S, n)


def _sentence(
    plan: Plan, counts: Sequence[int], families: Sequence[ComparedFamily], judged: Sequence[RunPredictions]
) -> str:
    of_recipes = len(plan.seeds) > 1
    best = []
    for i in (0, -1):
        family, place = families[i].family, families[i].place
        first = int(family.accuracy.argmax())
        others = [(first, other) for other in range(family.models) if other != first]
        tests = family.differences(others, of_recipes=of_recipes)
        name = "no model"
        if all(test.is_distinguished for test in tests):
            name = next(name for name in plan.models if place[name] == first)
        best.append(f"pre-trained on {counts[i]} images, {name} is better than all others")
    changes = {}
    for name in plan.models:
        right = np.stack([each.of(name) for each in judged])  # (sizes, S, n)
        (change,) = Family(right, judged[-1].units).differences([(len(judged) - 1, 0)], of_recipes=of_recipes)
        if change.p_alone * len(plan.models) < LEVEL:
            changes[name] = change.mean
    return "; ".join([*(best if len(plan.models) > 1 else []), changes_in_words(changes, counts[0])])


def changes_in_words(changes: Mapping[str, float], fewest: int) -> str:
    """Return a sentence on how accuracies change if models are pre-trained on all images instead of the smallest part.

    `changes` are the significant changes in accuracy by model, and `fewest` is the number of images of that part.
    """
    if not changes:
        return "for no model, more images change the accuracy significantly"
    said = (f"{name} {'gains' if by > 0 else 'loses'} {100 * abs(by):.1f} points" for name, by in changes.items())
    return f"with all images instead of {fewest}, {', '.join(said)}"


def _shown(experiment: PretrainingSizes, figures: dict[str, Any], out: Path) -> Result:
    headings = ("", "pre-trained on", "fine-tuned", "95 %", f"{SHOTS} a class", "95 %", "parameters", "GMACs")
    rows = []
    for model in figures["models"]:
        for part in model["by_size"]:
            cells = [model["name"], f"{part['images']:,} images"]
            for key in ("fine_tuned", "few_shot"):
                low, high = (100 * end for end in part[key]["interval"])
                cells += [f"{100 * part[key]['accuracy']:.1f} %", f"{low:.1f} to {high:.1f}"]
            rows.append((*cells, f"{model['parameters']:,}", f"{model['gmacs']:.3g}"))
    images = images_in_words(figures["test_images"], figures["split"])
    seeds = plural(len(figures["seeds"]), "seed", "seeds")
    by_size = {part["fraction"]: part["images"] for part in figures["models"][0]["by_size"]}
    remarks = (
        figures["sentence"],
        f"{images}, {seeds}; the most frequent class alone: {100 * figures['chance']:.1f} %",
        *figures["findings"],
        *(f"{by_size[pair['fraction']]} images: {pair['verdict']}" for pair in figures["pairs"]),
    )
    return result_of(experiment, figures, headings, tuple(rows), remarks, out)


# --- The cost of the paper's trainings --------------------------------------------------------------------

_PAPER_SIZES = (9_000_000, 30_000_000, 90_000_000, 303_000_000)  # of JFT, in Figure 4
_PAPER_RECIPES = ("paper-vit-b16-jft", "paper-vit-l32-jft", "paper-vit-l16-jft", "paper-vit-h14-jft")


def foresee_sizes(experiment: PretrainingSizes) -> Result:
    """Predict the cost of the paper's pre-trainings on parts of JFT, with the same number of steps for each part."""
    from vitkit.experiments.lab.cost import training_flops
    from vitkit.training import paper_training

    rows: list[tuple[str, ...]] = []
    models: list[dict[str, Any]] = []
    for name in _PAPER_RECIPES:
        training = paper_training(Recipe.load(name))
        info, flops, steps = describe(training.config), training_flops(training), training.steps
        seen = training.corpus.images * training.recipe.epochs
        days = core_days(flops)
        by_size = [{"images": images, "epochs": seen / images} for images in _PAPER_SIZES]
        models.append({"name": name, "steps": steps, "flops": flops, "core_days": days, "by_size": by_size})
        models[-1] |= {"parameters": info.parameters, "gmacs": info.gmacs}
        epochs = [f"{part['epochs']:.3g}" for part in by_size]
        rows.append((name, f"{info.parameters:,}", *epochs, f"{steps:,}", f"{flops:.3g}", f"{days:,.0f}"))
    sizes = [f"epochs of {images / 1e6:.0f} M" for images in _PAPER_SIZES]
    headings = ("", "parameters", *sizes, "steps", "FLOPs", "TPUv3-core-days each")
    total = sum(model["core_days"] for model in models) * len(_PAPER_SIZES)
    trainings = len(rows) * len(_PAPER_SIZES)
    lines = (
        f"{trainings} pre-trainings take {total:,.0f} TPUv3-core-days at {UTILISATION:.0%} of the peak",
        "JFT-300M is not public: nothing was trained",
        "with --upstream FOLDER --data FOLDER, the experiment uses other images",
    )
    figures = {"experiment": experiment.name, "preset": "paper", "models": models}
    figures["command"] = f"vitkit lab {experiment.name} --preset paper"
    return result_of(experiment, figures, headings, tuple(rows), lines)
