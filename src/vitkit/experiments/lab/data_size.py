"""Pre-train models on parts of one source of images, and transfer them to another (sec. 4.3, Figures 3 and 4).

Every model is pre-trained with labels on 1/9, 1/3 and all images of the first source. It is then evaluated on the other
source in two ways: by fine-tuning, and by least squares on the frozen features of a few images of each class. Seeds are
paired: with the same seed, all models are pre-trained on the same images.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from vitkit.data import held_out_split, read_source, split_from_file
from vitkit.errors import VitkitError
from vitkit.evaluation import images_in_words
from vitkit.experiments.comparison_figures import (
    RunPredictions,
    facts_of_test,
    family_of,
    pair_figures,
    read_run_predictions,
)
from vitkit.experiments.comparison_images import after_training, hash_of_images, head_features
from vitkit.experiments.comparison_plan import ComparisonJob, Plan
from vitkit.experiments.comparison_request import PLANNED, names_of
from vitkit.experiments.lab import (
    FOLDER_PLACEHOLDER,
    TUNING,
    AblationVariant,
    PretrainingSizes,
    result_of,
    variant_fields,
)
from vitkit.experiments.lab.ablations import draw_images, fit_and_predict
from vitkit.experiments.statistics import Family
from vitkit.model import config_for, is_network_name
from vitkit.profiling import describe
from vitkit.system import SPLIT, public_path, receiver
from vitkit.text import plural
from vitkit.training import Recipe, Run, prefix_errors, prepared, without_vit_fields
from vitkit.verbs import Result

SIZES = (1 / 9, 1 / 3, 1.0)  # fractions of the pre-training images
SHOTS = 5  # images of each class, as in Figure 4
RESNET = "custom:bit_resnet_micro"  # about as large as the ViT
HALVES = ("upstream.csv", "downstream.csv")  # lists of the images in each half of the classes
_TUNING_FACTORS = {"epochs": 1 / 3, "lr": 1 / 3}  # factors for a fine-tuning, relative to the pre-training


def split_by_class(data: str, folder: Path) -> tuple[str, str]:
    """Split a source of images into two sources with different classes, and write a CSV list of each into `folder`.

    Every second class is for the pre-training (upstream), and the others are for the evaluation (downstream).

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
    return str(folder / HALVES[0]), str(folder / HALVES[1])


def plan_sizes(
    upstream: str, downstream: str, models: str, base: Mapping[str, Any], set_by_user: Mapping[str, Any], seeds: int
) -> tuple[Plan, list[dict[str, Any]], list[int]]:
    """Plan all pre-trainings and fine-tunings: the plan, a description of each model, and the images of each part.

    `models` are names separated by commas, and `base` is the recipe that all trainings share, without a model. The
    fields `set_by_user` are part of it; it is an error if the experiment varies one of them.
    """
    names = names_of(models)
    if len(set(names)) < len(names):
        raise VitkitError(
            "experiments.model-twice", f"--model {','.join(names)} has a model twice: leave out one of them"
        )
    seed = base.get("seed", 0)
    run_seeds = range(seed, seed + seeds)
    side_of_first_vit = next((config_for(name).image_size[0] for name in names if not is_network_name(name)), None)
    first: list[Run] = []  # the two prepared trainings of the first model: on the upstream and on the downstream images
    described, notes, jobs, counts = [], [], [], list[int]()
    for number, name in enumerate(names, start=1):
        receiver()("checking the models", number - 1, len(names))
        fields = {**base, "model": name, "weights": "none", "split_seed": base.get("split_seed", seed)}
        if is_network_name(name) and side_of_first_vit is not None and not base.get("image_size"):
            fields["image_size"] = side_of_first_vit  # a network may have no size of its own
        recipe, left_out = without_vit_fields(Recipe.of(fields, PLANNED))
        notes += [f"{name}: {reason}" for reason in left_out]
        with prefix_errors(name):
            starts = [prepared(recipe.complete({"data": data})) for data in (upstream, downstream)]
        first = first or starts
        pretraining, tuning = starts
        info = describe(tuning.config)
        described.append({"name": name, "parameters": info.parameters, "gmacs": info.gmacs})
        images, tuning_images = (start.parts[0].images.table.splits.count("train") for start in starts)
        _check_smallest_part(upstream, images, pretraining.config.num_classes)
        counts = [max(round(size * images), 1) for size in SIZES]

        shared = recipe.set_fields()
        safe_name = re.sub(r"[^A-Za-z0-9._-]+", "-", name)
        for size, count in zip(SIZES, counts, strict=True):
            before = {**shared}
            if count < images:
                before["max_images"] = count
            before["epochs"] = max(round(pretraining.recipe.epochs / size), 1)  # the same number of steps for each part
            before |= {"data": upstream, "method": pretraining.recipe.method}
            for run_seed in run_seeds:
                folder = f"runs/{number}-{safe_name}-{count}-seed{run_seed}"
                encoder = f"{folder}-pretrained"
                weights = {"data": downstream, "weights": f"{FOLDER_PLACEHOLDER}/{encoder}"}
                variant = AblationVariant(name, {**TUNING, **weights}, factors=_TUNING_FACTORS)
                request, _ = without_vit_fields(Recipe.of(variant_fields(shared, set_by_user, variant), PLANNED))
                after = request.set_fields()
                label = f"{name}, pre-training"
                jobs.append(ComparisonJob(label, run_seed, size, count, {**before, "seed": run_seed}, encoder))
                jobs.append(ComparisonJob(name, run_seed, size, tuning_images, {**after, "seed": run_seed}, folder))

    upstream_images, downstream_images = (start.parts[0].images for start in first)
    known = set(upstream_images.contents.values())
    shared_pictures = sum(content in known for content in downstream_images.contents.values())
    if shared_pictures:
        raise VitkitError(
            "experiments.sources-overlap",
            f"{shared_pictures} pictures are in both {upstream} and {downstream}: pre-train on other images",
        )
    for start in first:
        notes += [*start.source.unmatched, *start.source.corrections]
    jobs.sort(key=lambda job: (job.seed, job.fraction))
    plan = Plan(
        arguments={"data": downstream, "upstream": upstream},
        models=tuple(names),
        seeds=tuple(run_seeds),
        fractions=SIZES,
        jobs=tuple(jobs),
        test_hash=hash_of_images(first[1].parts[0], held_out_split(downstream_images.table)),
        notes=tuple(dict.fromkeys(notes)),
    )
    return plan, described, counts


def _check_smallest_part(upstream: str, images: int, classes: int) -> None:
    # With this number of images, the smallest part, which is rounded, has one of each class.
    min_images = math.ceil((classes - 0.5) / SIZES[0])
    if images < min_images:
        raise VitkitError(
            "experiments.images-few",
            f"{upstream} has {images} training images, and a ninth of them cannot have one of each of "
            f"its {classes} classes: pre-train on at least {min_images}",
        )


# --- The result -------------------------------------------------------------------------------------------


def conclude(experiment: PretrainingSizes, plan: Plan, stored: Mapping[str, Any], out: Path) -> Result:
    """Compare the models after each pre-training, given the content of the plan's file (`stored`)."""
    tuning = replace(plan, jobs=tuple(job for job in plan.jobs if job.model in plan.models))
    test_images = after_training(((job.model, out / job.folder) for job in tuning.jobs), plan.test_hash)
    predictions = [read_run_predictions(tuning, out, size, test_images) for size in plan.fractions]
    families = [family_of(tuning, each) for each in predictions]
    few_shot = [_few_shot_family(tuning, out, each) for each in predictions]
    counts = stored["images"]
    models = []
    for i, row in enumerate(stored["variants"]):
        by_size = [
            {
                "fraction": size,
                "images": count,
                "fine_tuned": family.accuracy_of(i),
                "few_shot": few_shot_family.accuracy_of(i),
            }
            for size, count, family, few_shot_family in zip(SIZES, counts, families, few_shot, strict=True)
        ]
        models.append({**row, "by_size": by_size})
    pairs = []
    for each, family in zip(predictions, families, strict=True):
        pairs += pair_figures(tuning, each, family)

    sentences = []
    if len(plan.models) > 1:
        for number in (0, -1):  # the smallest part, and all images
            family = families[number]
            first = int(family.accuracy.argmax())
            others = [(first, other) for other in range(family.models) if other != first]
            tests = family.differences(others, include_seeds=len(plan.seeds) > 1)
            name = plan.models[first] if all(test.is_distinguished for test in tests) else "no model"
            sentences.append(f"pre-trained on {counts[number]} images, {name} is better than all others")
    for i, name in enumerate(plan.models):
        before, after = (100 * families[number].accuracy[i] for number in (0, -1))
        sentences.append(f"{name}: {before:.1f} % pre-trained on {counts[0]} images, {after:.1f} % on {counts[-1]}")

    figures = {
        **{name: stored[name] for name in ("vitkit", "experiment", "command")},
        "data": public_path(plan.arguments["data"]),
        "upstream": public_path(plan.arguments["upstream"]),
        "sentence": "; ".join(sentences),
        "models": models,
        "pairs": pairs,
        "shots": SHOTS,
        **facts_of_test(plan, predictions[-1], test_images),
        "differs": experiment.differs,
    }
    return _result(experiment, figures, out)


def _few_shot_family(plan: Plan, out: Path, predictions: RunPredictions) -> Family:
    # Each pre-trained model is evaluated by least squares on the frozen features of `SHOTS` images of each class.
    from vitkit.weights import load

    correct: dict[str, list[npt.NDArray[np.bool_]]] = {name: [] for name in plan.models}
    jobs = [job for job in plan.jobs if job.model in plan.models and job.fraction == predictions.fraction]
    for job in sorted(jobs, key=lambda job: job.seed):
        classifier = load(out / f"{job.folder}-pretrained")
        table = split_from_file(out / job.folder / SPLIT)
        train = table.of_split("train")
        labels = np.array(train.labels)
        chosen = draw_images(labels, SHOTS, job.seed)
        files = [*(train.file(int(i)) for i in chosen), *(table.at(path) for path in predictions.paths)]
        x = head_features(classifier, files, "frozen models")  # (n, D)
        predicted = fit_and_predict(x[: len(chosen)], labels[chosen], x[len(chosen) :], len(table.classes))
        correct[job.model].append(predicted == np.array([table.classes.index(label) for label in predictions.labels]))
    return Family(np.array(list(correct.values())), predictions.units)  # (M, S, n)


def _result(experiment: PretrainingSizes, figures: dict[str, Any], out: Path) -> Result:
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
