"""An ablation from its plan to its table: variants trained alike, with paired seeds, judged by the same images."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from vitkit.errors import VitkitError
from vitkit.evaluation.headline import counted_figures
from vitkit.evaluation.metrics import held_out_split
from vitkit.evaluation.registry import read_figures
from vitkit.experiments.comparison_figures import Judged, numbers_of, read_judged, verdict
from vitkit.experiments.comparison_plan import Job, Plan
from vitkit.experiments.judging import after_training, before_training, hash_of_images
from vitkit.experiments.lab.experiment import Ablation, Variant
from vitkit.experiments.lab.presets import Preset, base_config, base_fields, pretraining_fields, variant_fields
from vitkit.experiments.statistics import Family
from vitkit.profiling.model_info import describe
from vitkit.system.progress import Progress
from vitkit.system.run_files import EVALUATION
from vitkit.training.effects import check_effects, without_effect
from vitkit.training.lineage import Divided
from vitkit.training.recipe import build
from vitkit.training.settling import settle
from vitkit.weights.read import reading_once

HERE = "{folder}"  # stands for the experiment's folder, which may move
_HELD, _NOT_SHOWN, _REVERSED = "held", "not shown", "the other way round"


def plan_ablation(
    ablation: Ablation,
    data: str,
    preset: Preset,
    seeds: int,
    asked: Mapping[str, Any],
    progress: Progress,
) -> tuple[Plan, list[dict[str, Any]]]:
    """All trainings, and what each variant is, before anything is trained.

    Raises:
        VitkitError: a variant cannot be built or trained on these images, or what it varies was asked for.
    """
    base = base_fields(ablation, data, preset, asked)
    variants = ablation.variants(base_config(base))
    seed = base.get("seed", 0)
    jobs, told, notes, judged_by, images, classes = [], [], [], None, 0, 0
    folders: dict[str, str] = {}
    entries: list[tuple[str, Divided]] = []
    with reading_once():
        for place, variant in enumerate(variants):
            progress("looking at the variants", place, len(variants))
            fields = {**variant_fields(base, asked, variant), "split_seed": base.get("split_seed", seed)}
            try:
                if variant.after is None and not variant.pretraining:
                    settled = settle(fields, progress)
                    (own,) = settled.parts
                    entries.append((variant.label, own))
                    judged_by = judged_by or hash_of_images(own, held_out_split(own.images.table))
                    images, config = own.images.table.splits.count("train"), settled.config
                    classes = config.num_classes
                    check_effects(settled.recipe, fields, named=asked)
                    idle = without_effect(settled.recipe, fields)  # a preset's epochs, where a head is fitted at once
                    fields = {name: value for name, value in fields.items() if name not in idle}
                    fields |= {"method": settled.recipe.method}
                    notes += [*settled.table.unmatched, *settled.table.corrections]
                    notes += [f"{variant.label}: {reason}" for reason in settled.reasons]
                else:
                    build(fields)
                    config = base_config(fields).replace(num_classes=classes)
            except VitkitError as error:
                raise VitkitError(f"{variant.label}: {error}") from error
            info = describe(config)
            told.append(_described(variant, info.parameters, info.gmacs))
            folders[variant.label] = f"runs/{place + 1}-{re.sub(r'[^a-z0-9]+', '-', variant.label.lower()).strip('-')}"
            for own_seed in range(seed, seed + seeds):
                if variant.after is not None:
                    fields = {**fields, "weights": f"{HERE}/{folders[variant.after]}-seed{own_seed}"}
                folder, own_fields = f"{folders[variant.label]}-seed{own_seed}", {**fields, "seed": own_seed}
                before = pretraining_fields(own_fields, variant) if variant.pretraining else None
                jobs.append(Job(variant.label, own_seed, 1.0, images, own_fields, folder, before))
    jobs.sort(key=lambda job: job.seed)  # of one seed the variants follow one another
    assert judged_by is not None
    judging = before_training(entries)
    judging.check()
    notes += judging.findings()
    plan = Plan(
        {"experiment": ablation.name, "data": data, "preset": preset},
        tuple(variant.label for variant in variants),
        tuple(range(seed, seed + seeds)),
        (1.0,),
        tuple(jobs),
        judged_by,
        tuple(dict.fromkeys(notes)),
    )
    return plan, told


def in_folder(plan: Plan, folder: Path) -> Plan:
    """The plan with the runs that others start from where they are."""
    jobs = []
    for job in plan.jobs:
        weights = str(job.fields["weights"])
        found = str(folder / weights.removeprefix(f"{HERE}/")) if weights.startswith(HERE) else weights
        jobs.append(replace(job, fields={**job.fields, "weights": found}))
    return replace(plan, jobs=tuple(jobs))


def _described(variant: Variant, parameters: int, gmacs: float) -> dict[str, Any]:
    return {"label": variant.label, "paper": variant.paper, "parameters": parameters, "gmacs": gmacs}


def figures_of(ablation: Ablation, plan: Plan, told: Sequence[Mapping[str, Any]], out: Path) -> dict[str, Any]:
    """What the finished runs say, in plain JSON types."""
    judging = after_training(((job.model, out / job.folder) for job in plan.jobs), plan.test_hash)
    judging.check()
    judged = read_judged(plan, out, 1.0, judging)
    labels = [own["label"] for own in told]
    family = family_of(labels, judged)
    variants = []
    for place, own in enumerate(told):
        jobs = [job for job in plan.jobs if job.model == own["label"]]
        runs = [{"seed": job.seed, "folder": job.folder, **_of_run(job, out / job.folder, judged)} for job in jobs]
        interval = [float(end) for end in family.interval(place)]
        variants.append({**own, "accuracy": float(family.accuracy[place]), "interval": interval, "runs": runs})
    pairs = pairs_against(ablation.against, labels, judged)
    return {
        "variants": variants,
        "pairs": pairs,
        "claims": claims_of(ablation, pairs),
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


def _of_run(job: Job, folder: Path, judged: Judged) -> dict[str, Any]:
    """The accuracy on the images that judge, and the log loss where the run's own evaluation counted the same ones."""
    figures = counted_figures(read_figures(folder / EVALUATION))
    loss = figures.get("loss") if figures.get("images") == len(judged.paths) else None
    return {"accuracy": float(judged.answers[job.model, job.seed].mean()), "loss": loss}


def family_of(labels: Sequence[str], judged: Judged) -> Family:
    """The variants, for statistics of all of them together."""
    return Family(np.stack([judged.of(label) for label in labels]), judged.units)


def pairs_against(against: str, labels: Sequence[str], judged: Judged) -> list[dict[str, Any]]:
    """How each variant differs from one of them, judged jointly with the other variants."""
    family, last = family_of(labels, judged), labels.index(against)
    compared = [(place, last) for place in range(len(labels)) if place != last]
    rows = []
    for (place, _), recipe, trained in zip(
        compared, family.differences(compared), family.differences(compared, of_recipes=False), strict=True
    ):
        label = labels[place]
        rows.append(
            {
                "a": label,
                "b": against,
                "difference": recipe.mean,
                **numbers_of(recipe),
                "trained": numbers_of(trained),
                "verdict": verdict(label, against, recipe, trained, family.seeds, judged.described, len(compared)),
            }
        )
    return rows


def claims_of(ablation: Ablation, pairs: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Whether each of the source's claims is seen here: the interval of the difference lies above 0."""
    claims = []
    for pair in pairs:
        if pair["a"] not in ablation.better:
            continue
        low, high = pair["interval"]
        outcome = _HELD if low > 0 else _REVERSED if high < 0 else _NOT_SHOWN
        claims.append({"claim": f"{pair['a']} is better than {pair['b']}", "outcome": outcome})
    return claims
