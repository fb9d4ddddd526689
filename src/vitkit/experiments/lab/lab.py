"""`vitkit.lab`: repeat an experiment of the paper, or of a later article, on your own images.

An ablation trains its variants in the same way with paired seeds, and tests them on the same images. The preset `small`
takes minutes on two cores. The preset `paper` uses the published hyper-parameters. Without data, this preset only
computes the cost of the trainings.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import vitkit
from vitkit.errors import Interrupted, VitkitError
from vitkit.experiments.comparison_request import (
    PLANNED,
    ExperimentFolder,
    fields_of_request,
    recipe_of,
    refuse_divided,
)
from vitkit.experiments.lab import (
    LAB,
    PAGE,
    Ablation,
    AblationVariant,
    Costs,
    Experiment,
    Measurement,
    PretrainingSizes,
    outcome_of,
    quoted,
    remarks_of,
    result_of,
    table_of,
)
from vitkit.experiments.lab.ablations import EXPERIMENTS
from vitkit.model import ViTConfig, config_for, is_network_name, suggest
from vitkit.system import Progress, log, receiver, silent, without_place, write_json
from vitkit.text import Between, check_arguments, plural
from vitkit.training import Recipe, bundled_name, naming, requested, to_table, unfold
from vitkit.verbs import Result

Preset = Literal["small", "paper"]
_SMALL: dict[str, Any] = {"weights": "none", "epochs": 15, "batch_size": 32}


def base_fields(
    ablation: Ablation | PretrainingSizes, data: str, preset: Preset, fields: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the recipe that all variants share, with the fields that the user sets in place of those of the preset.

    The preset `paper` uses the published recipe of the ablation.
    """
    if preset == "paper":
        return requested(recipe_of(published_recipe(ablation), fields), data).set_fields()
    # Data with its own recipe uses the model of that recipe.
    model = {} if bundled_name(data) is not None else {"model": "vit_micro_patch4_32"}
    return requested(Recipe.of({**model, **_SMALL, **fields}), data).set_fields()


def published_recipe(ablation: Experiment) -> str:
    """Return the name of the bundled recipe with the published hyper-parameters."""
    if ablation.recipe is None:
        raise VitkitError(
            "experiments.recipe-missing", f"{ablation.name} has no published recipe; leave out --preset paper"
        )
    return ablation.recipe


def base_config(fields: Mapping[str, Any]) -> ViTConfig:
    """Return the configuration of the model that the variants modify."""
    if is_network_name(str(fields["model"])):
        raise VitkitError(
            "experiments.model-unsuitable",
            f"{fields['model']}: an ablation requires a Vision Transformer; set one with --model",
        )
    size = {} if fields.get("image_size") is None else {"image_size": fields["image_size"]}
    return config_for(str(fields["model"]), **size, **(fields.get("model_fields") or {}))


def variant_fields(base: Mapping[str, Any], shared: Mapping[str, Any], variant: AblationVariant) -> dict[str, Any]:
    """Return the recipe of one variant.

    `base` is the recipe that all variants share. The experiment may vary none of the fields that the user has set
    (`shared`).
    """
    changed, model = unfold(shared), dict(base.get("model_fields") or {})
    varied = dict(variant.fields)
    if is_network_name(str(varied.get("model", ""))):
        model = {}  # the network does not have the fields of a ViT
    changes = varied.pop("model_fields", {})
    for name in changes:
        if name in (changed.get("model_fields") or {}):
            raise VitkitError("experiments.field-varied", f"model.{name} is varied by this experiment: leave it out")
    for name in sorted(varied.keys() - {"model", "image_size"}):  # which choose the model that is varied
        if name in changed:
            raise VitkitError("experiments.field-varied", f"{name} is varied by this experiment: leave it out")
    fields = {**variant.usual, **base, **varied, "model_fields": {**model, **changes}}
    for name, factor in variant.times.items():
        value = fields.get(name, getattr(Recipe(), name))
        fields[name] = max(round(factor * value), 1) if isinstance(value, int) else factor * value
    return unfold({name: value for name, value in fields.items() if value is not None and value != {}})


_OF_BOTH = (  # fields that a pre-training shares with the training: model, preprocessing, split and machine
    *("data", "model", "model_fields", "image_size", "init", "batch_size"),
    *("fit", "crop_pct", "interpolation", "crop_scale", "hflip", "rotate", "translate", "zoom", "shear"),
    *("color_jitter", "layout", "follow_links", "split", "split_seed", "split_from", "group_by", "seed"),
    *("precision", "device", "compile", "cache", "workers"),
)


if TYPE_CHECKING:
    from vitkit.experiments.comparison_figures import RunPredictions
    from vitkit.experiments.comparison_plan import Plan
    from vitkit.experiments.statistics import Family
    from vitkit.training import SplitImages

    ExperimentName: TypeAlias = str  # choices are known when the table has been read
else:
    ExperimentName = Literal[tuple(EXPERIMENTS)]

PLAN = "lab-plan.json"  # the planned trainings, written before the first one
PLACE = ExperimentFolder(PLAN, "experiment")
DATA = "digits"


@check_arguments
def lab(
    name: Annotated[
        ExperimentName | None, f"The experiment: {', '.join(EXPERIMENTS)}; without a name, they are listed."
    ] = None,
    data: str | Path | None = None,
    recipe: str | Path | Recipe | None = None,
    *,
    model: str | Path | None = None,
    upstream: str | Path | None = None,
    preset: Preset = "small",
    seeds: Annotated[int, Between(1)] = 3,
    out: Path | str | None = None,
    resume: bool = False,
    progress: Progress = silent,
) -> Result:
    """Repeat an experiment of the paper: train its variants in the same way and compare them, or measure a model.

        import vitkit

        print(vitkit.lab())
        found = vitkit.lab("head", recipe=vitkit.Recipe(epochs=1, max_images=100), seeds=2)
        print(found.rows())

    On the command line: `vitkit lab position --set epochs=5`.

    Args:
        name: the name of the experiment; None returns a list of all experiments.
        data: folder of class folders, or a name; by default digits.
        recipe: TOML file with fields that all variants share. A `vitkit.Recipe` is accepted, too. Fields that the
            experiment varies are refused.
        model: for an ablation, the model whose variants are compared; for a measurement, the model to measure:
            a run or model folder, a checkpoint, or a published name. For `data-size` and `cost`, several models,
            separated by commas; by default a ViT, a hybrid and a ResNet.
        upstream: for `data-size`, the images to pre-train on: a folder of class folders, or a name. By default, the
            models are pre-trained on every second class of `data` and evaluated on the others.
        preset: `small` takes minutes on two cores; `paper` uses the published hyper-parameters. Without `data`, `paper`
            only computes the cost.
        seeds: number of trainings of each variant, or of draws of images, with consecutive seeds from `seed` on.
        out: folder of the experiment; by default the next runs/lab-NAME-N.
        resume: continue the experiment in `out` with its original arguments.
        progress: called with the current task, the number of finished items and their total.

    Returns:
        A result with the facts `experiment`, `figures` (the content of lab.json), `headings` and `cells` (the table as
        text), `remarks` (conclusions from the table), `folder` (of lab.json, the page and the runs; None if nothing was
        written), `page` and `arrays` (for the pictures). Without `name`, its only fact is `experiments`.

    Raises:
        VitkitError: there is no such experiment, it does not support these images or this model, or `out` is in use or
            not empty.
        Interrupted: a signal stopped the experiment; `resume` continues it.
        OSError: the folder cannot be written.
    """
    source, fields = fields_of_request(recipe, "an experiment")
    if source is not None:
        fields = Recipe.load(source).set_fields() | fields
    of_recipe = fields.pop("data", None)
    data = of_recipe if data is None else data
    refuse_divided(fields)
    if resume:
        if name is not None or data is not None or model is not None or upstream is not None or fields:
            raise VitkitError(
                "experiments.argument-changed", "--resume uses the arguments of --out: leave out all other arguments"
            )
        return _resume(out)
    if name is None:
        if data is not None or model is not None or upstream is not None or out is not None or fields:
            raise VitkitError(
                "experiments.experiment-missing",
                f"no experiment is named: write one of {', '.join(EXPERIMENTS)}, or leave out all arguments",
            )
        width = max(map(len, EXPERIMENTS))
        rows = [{"name": each.name, "question": each.question, "source": each.source} for each in EXPERIMENTS.values()]
        lines = [f"{row['name'].ljust(width)}  {row['question']} ({row['source']})" for row in rows]
        listed = {row["name"]: {"question": row["question"], "source": row["source"]} for row in rows}
        return Result("lab", lines, {"experiments": tuple(EXPERIMENTS.values())}, json=listed, rows=rows)
    if name not in EXPERIMENTS:
        raise VitkitError(
            "experiments.experiment-unknown",
            f"no experiment {name!r}{suggest(name, list(EXPERIMENTS))}; there are: {', '.join(EXPERIMENTS)}",
        )
    experiment = EXPERIMENTS[name]
    if upstream is not None and not isinstance(experiment, PretrainingSizes):
        raise VitkitError(
            "experiments.argument-unused",
            f"{name} does not use --upstream, which applies only to data-size: leave it out",
        )
    if preset == "paper" and data is None:
        idle: dict[str, Any] = {"out": out, "upstream": upstream}
        idle |= {} if isinstance(experiment, Ablation) else {"model": model, **fields}
        if without_effect := next((field for field, value in idle.items() if value is not None), None):
            raise VitkitError(
                "experiments.argument-unused",
                f"{name} only computes a cost without data, so {without_effect} has no effect: leave it out",
            )
    if isinstance(experiment, PretrainingSizes):
        return _transfer(experiment, data, upstream, model, preset, seeds, fields, out)
    if isinstance(experiment, Costs):
        return _cost(experiment, data, model, preset, fields, out)
    if isinstance(experiment, Measurement):
        return _measure(experiment, data, model, preset, seeds, fields, out)
    assert isinstance(experiment, Ablation)
    shared: dict[str, Any] = {**fields} if model is None else {**fields, "model": str(model)}
    if preset == "paper" and data is None:
        return foresee(experiment, shared)
    data = str(data or DATA)
    with ExitStack() as hold:
        folder = None if out is None else PLACE.reserve(out, hold)
        plan, variants = plan_ablation(experiment, data, preset, seeds, shared)
        command = _command(experiment, data, {"preset": preset, "seeds": seeds, **shared})
        folder = folder or _next(experiment, hold)
        return _begin(experiment, folder, plan, {"command": command, "variants": variants})


# --- Trainings ------------------------------------------------------------------------------------------------


def _transfer(
    experiment: PretrainingSizes,
    data: str | Path | None,
    upstream: str | Path | None,
    models: str | Path | None,
    preset: Preset,
    seeds: int,
    shared: Mapping[str, Any],
    out: str | Path | None,
) -> Result:
    from vitkit.experiments.lab.data_size import RESNET, Transfer, foresee_sizes, halve, plan_sizes

    if preset == "paper" and data is None:
        return foresee_sizes(experiment)
    source = str(data or DATA)
    base = base_fields(experiment, source, preset, shared)
    side = 32 if bundled_name(source) is None else 16  # data with its own recipe, such as the digits, is small
    names = str(models or f"vit_micro_patch4_{side},vit_micro_r_s4_{side},{RESNET}")
    with ExitStack() as hold:
        folder = PLACE.reserve(out, hold) if out is not None else _next(experiment, hold)
        folder.mkdir(parents=True, exist_ok=True)
        try:
            transfer = halve(source, folder) if upstream is None else Transfer(str(upstream), source)
            plan, variants, images = plan_sizes(
                transfer, names, base, lambda fields, variant: variant_fields(fields, shared, variant), seeds, HERE
            )
        except VitkitError:
            for file in folder.glob("*.csv"):
                file.unlink()
            raise
        options = {"model": models, "upstream": upstream, "preset": preset, "seeds": seeds, **shared}
        command = _command(experiment, source, {name: value for name, value in options.items() if value is not None})
        return _begin(experiment, folder, plan, {"command": command, "variants": variants, "images": images})


def _begin(experiment: Experiment, folder: Path, plan: Plan, described: Mapping[str, Any]) -> Result:
    begun = {"vitkit": vitkit.__version__, "experiment": experiment.name, **described}
    write_json(folder / PLAN, {**begun, "plan": plan.to_dict()})
    for note in plan.notes:
        log.info(note)
    log.info(f"{plural(len(plan.runs()), 'run', 'runs')}, in {folder}")
    return _finish(experiment, folder, plan, begun)


def _resume(out: str | Path | None) -> Result:
    from vitkit.experiments.comparison_plan import Plan

    with ExitStack() as hold:
        folder = PLACE.lock(out, hold)
        begun = PLACE.read(folder)
        try:
            plan, experiment = Plan.from_dict(begun.pop("plan")), EXPERIMENTS[begun["experiment"]]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise PLACE.damaged(folder) from error
        return _finish(experiment, folder, plan, begun)


def _finish(experiment: Experiment, folder: Path, plan: Plan, begun: Mapping[str, Any]) -> Result:
    from vitkit.experiments.comparison_runs import make_all

    jobs = []
    for job in plan.runs():
        weights = str(job.fields["weights"])
        weights = str(folder / weights.removeprefix(f"{HERE}/")) if weights.startswith(HERE) else weights
        jobs.append(replace(job, fields={**job.fields, "weights": weights}))
    try:
        diverged = make_all(jobs, folder, 1)
    except Interrupted:
        log.info(f"to continue: vitkit lab --resume --out {folder}")
        raise
    if diverged:
        raise VitkitError(
            "experiments.training-diverged", "; ".join(f"{folder / run}: {why}" for run, why in diverged.items())
        )
    if isinstance(experiment, PretrainingSizes):
        from vitkit.experiments.lab.data_size import conclude

        return _written(conclude(experiment, plan, begun, folder))
    assert isinstance(experiment, Ablation)
    figures = {
        **{name: begun[name] for name in ("vitkit", "experiment", "command")},
        **figures_of(experiment, plan, begun["variants"], folder),
        "differs": experiment.differs,
        "column": experiment.column,
    }
    headings, rows = table_of(experiment, figures)
    return _written(result_of(experiment, figures, headings, rows, remarks_of(figures), folder))


# --- Measurements ---------------------------------------------------------------------------------------------


def _measure(
    measurement: Measurement,
    data: str | Path | None,
    model: str | Path | None,
    preset: Preset,
    seeds: int,
    fields: Mapping[str, Any],
    out: str | Path | None,
) -> Result:
    if idle := fields.keys() - {"seed"}:
        raise VitkitError(
            "experiments.argument-unused",
            f"{measurement.name} measures a model without training, so {min(idle)} has no effect; leave it out",
        )
    if preset == "paper":
        raise VitkitError(
            "experiments.recipe-missing",
            f"{measurement.name} trains nothing and has no recipe: set the model to measure with --model",
        )
    if model is None:
        raise VitkitError(
            "experiments.argument-missing",
            f"{measurement.name} measures a model: set a run, a checkpoint or published weights with --model",
        )
    from vitkit.experiments.judging import subject_of

    source, seed = str(data or DATA), int(fields.get("seed", 0))
    with ExitStack() as hold:
        folder = None if out is None else PLACE.reserve(out, hold)
        subject = subject_of(str(model), source, seeds, seed)
        measured = getattr(import_module(measurement.module), measurement.function)(subject)
        folder = folder or _next(measurement, hold)
        figures = {
            "vitkit": vitkit.__version__,
            "experiment": measurement.name,
            "command": _command(measurement, source, {"model": str(model), "seeds": seeds, "seed": seed}),
            "model": without_place(model),
            "data": without_place(source),
            **measured.numbers,
            "findings": list(subject.findings),
            "differs": measurement.differs,
        }
        rows, lines = tuple(map(tuple, measured.rows)), (*measured.lines, *subject.findings)
        result = result_of(measurement, figures, tuple(measured.headings), rows, lines, folder, measured.arrays)
        return _written(result)


def _cost(
    experiment: Costs,
    data: str | Path | None,
    models: str | Path | None,
    preset: Preset,
    fields: Mapping[str, Any],
    out: str | Path | None,
) -> Result:
    if data is not None or fields.keys() - {"image_size"}:
        idle = "--data" if data is not None else min(fields.keys() - {"image_size"})
        raise VitkitError(
            "experiments.argument-unused",
            f"{experiment.name} times models without images or training, so {idle} has no effect; leave it out",
        )
    from vitkit.experiments.lab.cost import foresee_costs, measure_costs

    if preset == "paper":
        return foresee_costs(experiment)
    side = int(fields.get("image_size") or 32)
    names = str(models or f"vit_micro_patch4_{side},vit_micro_r_s4_{side},custom:bit_resnet_micro")
    with ExitStack() as hold:
        folder = None if out is None else PLACE.reserve(out, hold)
        result = measure_costs(experiment, names, side)
        options = {} if models is None else {"model": str(models)}
        words = _command(experiment, None, {**options, **fields})
        figures = {"vitkit": vitkit.__version__, "command": words, **result.figures}
        folder = folder or _next(experiment, hold)
        return _written(result_of(experiment, figures, result.headings, result.cells, result.remarks, folder))


# --- Files ----------------------------------------------------------------------------------------------------


def _next(experiment: Experiment, hold: ExitStack) -> Path:
    from vitkit.training import new_run_folder

    return new_run_folder(f"lab-{experiment.name}", hold)


def _written(result: Result) -> Result:
    from vitkit.text import write_page

    write_json(result.folder / LAB, result.figures)
    write_page(result.folder / PAGE, f"vitkit lab: {result.experiment.name}", result._repr_html_())
    return result


def _command(experiment: Experiment, data: str | None, options: Mapping[str, Any]) -> str:
    """Return the command that repeats the experiment."""
    words = ["vitkit", "lab", experiment.name, *([] if data is None else ["--data", without_place(data)])]
    usual = {"preset": "small", "seeds": 3, "seed": 0}
    fields = {name: value for name, value in options.items() if name != "model_fields" and value != usual.get(name)}
    changes = to_table(None, options.get("model_fields") or {})
    for name, value in (fields | {f"model.{name}": value for name, value in changes.items()}).items():
        parts = value if isinstance(value, (list, tuple)) else (value,)
        text = ",".join(without_place(part) if isinstance(part, str) else str(part).lower() for part in parts)
        words.append(f"--{name} {text}" if name in ("model", "upstream", "preset", "seeds") else f"--set {name}={text}")
    return " ".join(words)


HERE = "{folder}"  # placeholder for the experiment's folder, which may be moved


def plan_ablation(
    ablation: Ablation, data: str, preset: Preset, seeds: int, shared: Mapping[str, Any]
) -> tuple[Plan, list[dict[str, Any]]]:
    """Plan the trainings of an ablation, and return the plan and a description of each variant."""
    from vitkit.data import held_out_split
    from vitkit.experiments.comparison_plan import ComparisonJob, Plan
    from vitkit.experiments.judging import before_training, hash_of_images
    from vitkit.profiling import describe
    from vitkit.training import check_effects, prepared, without_effect, without_fields_of_vits

    base = base_fields(ablation, data, preset, shared)
    variants = ablation.variants(base_config(base))
    seed = base.get("seed", 0)
    jobs, remarks, notes, test_hash, images, classes = [], [], [], None, 0, 0
    folders: dict[str, str] = {}
    entries: list[tuple[str, SplitImages]] = []
    for place, variant in enumerate(variants):
        receiver()("checking the variants", place, len(variants))
        fields = {**variant_fields(base, shared, variant), "split_seed": base.get("split_seed", seed)}
        chosen = {name: fields[name] for name in shared if name in fields}
        asked, left_out = without_fields_of_vits(Recipe.of(fields, PLANNED).replace(**chosen))
        fields = asked.set_fields()
        notes += [f"{variant.label}: {reason}" for reason in left_out]
        try:
            if variant.after is None and not variant.pretraining:
                start = prepared(asked)
                (split_images,) = start.parts
                entries.append((variant.label, split_images))
                test_hash = test_hash or hash_of_images(split_images, held_out_split(split_images.images.table))
                images, config = split_images.images.table.splits.count("train"), start.config
                images, classes = min(images, start.recipe.max_images or images), config.num_classes
                check_effects(start.recipe, asked)
                idle = without_effect(start.recipe, asked)  # such as epochs, if a head is fitted in closed form
                fields = {name: value for name, value in fields.items() if name not in idle}
                fields |= {"method": start.recipe.method}
                notes += [*start.source.unmatched, *start.source.corrections]
                notes += [f"{variant.label}: {reason}" for reason in start.reasons]
            else:
                config = base_config(fields).replace(num_classes=classes)
        except VitkitError as error:
            raise VitkitError(error.code, f"{variant.label}: {error}") from error
        info = describe(config)
        remarks.append(_described(variant, info.parameters, info.gmacs))
        folders[variant.label] = f"runs/{place + 1}-{re.sub(r'[^a-z0-9]+', '-', variant.label.lower()).strip('-')}"
        for run_seed in range(seed, seed + seeds):
            if variant.after is not None:
                fields = {**fields, "weights": f"{HERE}/{folders[variant.after]}-seed{run_seed}"}
            folder, run_fields = f"{folders[variant.label]}-seed{run_seed}", {**fields, "seed": run_seed}
            before = None
            if variant.pretraining:  # with all training images, even if `max_images` limits those of the training
                both = {name: run_fields[name] for name in _OF_BOTH if name in run_fields}
                before = {**both, "logger": "none", **variant.pretraining}
            jobs.append(ComparisonJob(variant.label, run_seed, 1.0, images, run_fields, folder, before))
    jobs.sort(key=lambda job: job.seed)  # all variants of one seed are trained one after another
    assert test_hash is not None
    judging = before_training(entries)
    judging.check()
    notes += judging.findings()
    plan = Plan(
        {"experiment": ablation.name, "data": data, "preset": preset},
        tuple(variant.label for variant in variants),
        tuple(range(seed, seed + seeds)),
        (1.0,),
        tuple(jobs),
        test_hash,
        tuple(dict.fromkeys(notes)),
    )
    return plan, remarks


def _described(variant: AblationVariant, parameters: int, gmacs: float) -> dict[str, Any]:
    return {"label": variant.label, "paper": variant.paper, "parameters": parameters, "gmacs": gmacs}


def figures_of(ablation: Ablation, plan: Plan, described: Sequence[Mapping[str, Any]], out: Path) -> dict[str, Any]:
    """Compute the results of an ablation from its finished runs, in plain JSON types."""
    from vitkit.experiments.comparison_figures import facts_of_test, of_run, read_run_predictions
    from vitkit.experiments.judging import after_training

    judging = after_training(((job.model, out / job.folder) for job in plan.jobs), plan.test_hash)
    judging.check()
    judged = read_run_predictions(plan, out, 1.0, judging)
    labels = [row["label"] for row in described]
    family = family_of(labels, judged)
    variants = []
    for place, row in enumerate(described):
        jobs = [job for job in plan.jobs if job.model == row["label"]]
        runs = [of_run(job, out, row["gmacs"], judged) for job in jobs]
        interval = [float(end) for end in family.interval(place)]
        variants.append({**row, "accuracy": float(family.accuracy[place]), "interval": interval, "runs": runs})
    pairs = pairs_against(ablation.against, labels, judged)
    return {
        "variants": variants,
        "pairs": pairs,
        "claims": claims_of(ablation, pairs, len(plan.seeds)),
        **facts_of_test(plan, judged, judging),
    }


def family_of(labels: Sequence[str], judged: RunPredictions) -> Family:
    """Prepare the variants for joint statistical tests."""
    import numpy as np

    from vitkit.experiments.statistics import Family

    return Family(np.stack([judged.of(label) for label in labels]), judged.units)


def pairs_against(against: str, labels: Sequence[str], judged: RunPredictions) -> list[dict[str, Any]]:
    """Compare each variant with the variant `against`, with p-values that are adjusted for these comparisons."""
    from vitkit.experiments.comparison_figures import verdict

    family, last = family_of(labels, judged), labels.index(against)
    compared = [(place, last) for place in range(len(labels)) if place != last]
    rows = []
    for (place, _), recipe, trained in zip(
        compared, family.differences(compared), family.differences(compared, of_recipes=False), strict=True
    ):
        label = labels[place]
        named = (quoted(label), quoted(against))
        text = verdict(*named, recipe, trained, family.seeds, judged.described, len(compared))
        row = {"a": label, "b": against, "difference": recipe.mean, **recipe.numbers(), "trained": trained.numbers()}
        rows.append({**row, "verdict": text})
    return rows


def claims_of(ablation: Ablation, pairs: Sequence[Mapping[str, Any]], seeds: int) -> list[dict[str, str]]:
    """Return the claims of the paper or article about an ablation, each with whether it held here (`outcome_of`)."""
    outcomes = {1: "held", 0: "not shown", -1: "the other way round"}
    return [
        {
            "claim": f"{quoted(pair['a'])} is better than {quoted(pair['b'])}",
            "outcome": outcomes[outcome_of(pair, seeds)],
        }
        for pair in pairs
        if pair["a"] in ablation.better
    ]


def foresee(ablation: Ablation, fields: Mapping[str, Any]) -> Result:
    """Predict the cost of each variant with the published hyper-parameters, except for these fields; train nothing."""
    from vitkit.experiments.comparison_plan import passes_of
    from vitkit.profiling import describe
    from vitkit.training import CORPORA, config_of, steps_of, without_fields_of_vits

    recipe_name = published_recipe(ablation)
    corpus = CORPORA[recipe_name.rpartition("-")[2]]
    base = base_fields(ablation, corpus.title, "paper", fields)
    variants, rows = [], []
    for variant in ablation.variants(base_config(base)):
        with naming(variant.label):
            recipe, _ = without_fields_of_vits(Recipe.of(variant_fields(base, fields, variant)))
        config = config_of(recipe, corpus.classes)
        info, seen, steps = describe(config), corpus.images * recipe.epochs, steps_of(recipe, corpus.images)
        tokens = 0
        if isinstance(config, ViTConfig):
            tokens = config.prefix_tokens + max(1, round(config.patches * (1 - recipe.patch_dropout)))
        entry = {
            **_described(variant, info.parameters, info.gmacs),
            "tokens_per_image": tokens,
            "steps": steps,
            "warmup_steps": round(recipe.warmup * steps),
            "lr": recipe.lr,
            "tokens": seen * tokens,
            "flops": 2e9 * passes_of("scratch") * info.gmacs * seen,
        }
        variants.append(entry)
        row = [variant.label, f"{info.parameters:,}", f"{info.gmacs:.4g}", str(tokens), f"{steps:,}"]
        rows.append((*row, f"{recipe.lr:.3g}", f"{entry['tokens']:.3g}", f"{entry['flops']:.3g}", variant.paper or "-"))
    headings = ["", "parameters", "GMACs", "tokens an image", "steps", "learning rate", "tokens", "FLOPs"]
    lines = [
        f"{recipe_name} on {corpus.title}, {corpus.images:,} images of {corpus.classes:,} classes: nothing was trained",
        "the images are not included: with --data FOLDER, the variants are trained on others with the same recipe",
    ]
    figures = {"experiment": ablation.name, "preset": "paper", "recipe": recipe_name, "variants": variants}
    column = f"paper: {ablation.column}" if ablation.column else "paper"
    figures["command"] = f"vitkit lab {ablation.name} --preset paper"
    return result_of(ablation, figures, (*headings, column), tuple(rows), tuple(lines))
