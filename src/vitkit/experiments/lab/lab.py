"""`vitkit.lab`: repeat an experiment of the paper, or of a later article, on your own images.

An ablation trains its variants in the same way with paired seeds, and tests them on the same images. The preset `small`
takes minutes on two cores. The preset `paper` uses the published hyper-parameters.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import vitkit
from vitkit.errors import Interrupted, VitkitError
from vitkit.evaluation import images_in_words
from vitkit.experiments.comparison_request import (
    PLANNED,
    ExperimentFolder,
    fields_of_request,
    recipe_of,
    refuse_divided,
)
from vitkit.experiments.lab import (
    FOLDER_PLACEHOLDER,
    LAB,
    PAGE,
    Ablation,
    Costs,
    Experiment,
    Measurement,
    PretrainingSizes,
    outcome_of,
    quoted,
    result_of,
    summary_of,
    table_of,
    variant_fields,
)
from vitkit.experiments.lab.ablations import EXPERIMENTS
from vitkit.model import ViTConfig, config_for, is_network_name
from vitkit.system import Progress, log, public_path, read_json, receiver, silent, write_json
from vitkit.text import Between, check_arguments, plural
from vitkit.training import Recipe, bundled_name, model_table, prefix_errors, requested
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
        if ablation.recipe is None:
            raise VitkitError(
                "experiments.recipe-missing", f"{ablation.name} has no published recipe; leave out --preset paper"
            )
        return requested(recipe_of(ablation.recipe, fields), data).set_fields()
    # Data with its own recipe uses the model of that recipe.
    model = {} if bundled_name(data) is not None else {"model": "vit_micro_patch4_32"}
    return requested(Recipe.of({**model, **_SMALL, **fields}), data).set_fields()


def base_config(fields: Mapping[str, Any]) -> ViTConfig:
    """Return the configuration of the model that the variants modify."""
    if is_network_name(str(fields["model"])):
        raise VitkitError(
            "experiments.model-unsuitable",
            f"{fields['model']}: an ablation requires a Vision Transformer; set one with --model",
        )
    size = {} if fields.get("image_size") is None else {"image_size": fields["image_size"]}
    return config_for(str(fields["model"]), **size, **(fields.get("model_fields") or {}))


_PRETRAINING_FIELDS = (  # that a pre-training shares with the training: model, preprocessing, split and machine
    *("data", "model", "model_fields", "image_size", "init", "batch_size"),
    *("fit", "crop_pct", "interpolation", "crop_scale", "hflip", "rotate", "translate", "zoom", "shear"),
    *("color_jitter", "layout", "follow_links", "split", "split_seed", "split_from", "group_by", "seed"),
    *("precision", "device", "compile", "cache", "workers"),
)


if TYPE_CHECKING:
    from vitkit.experiments.comparison_figures import RunPredictions
    from vitkit.experiments.comparison_plan import Plan
    from vitkit.training import SplitImages

    ExperimentName: TypeAlias = str  # choices are known when the table has been read
else:
    ExperimentName = Literal[tuple(EXPERIMENTS)]


@dataclass(frozen=True)
class _Request:
    """The arguments of `lab` for one experiment."""

    data: str | None
    model: str | None
    upstream: str | None
    preset: Preset
    seeds: int
    fields: Mapping[str, Any]  # of the recipe
    out: str | Path | None

    @property
    def source(self) -> str:
        """The images, by default the digits."""
        return self.data or DATA


PLAN = "lab-plan.json"  # the planned trainings, written before the first one
FOLDER = ExperimentFolder(PLAN, "experiment")
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
        preset: `small` takes minutes on two cores; `paper` uses the published hyper-parameters, and requires `data`.
            For `cost`, `paper` counts the pre-trainings of the paper.
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
    recipe_data = fields.pop("data", None)
    data = recipe_data if data is None else data
    refuse_divided(fields)
    has_arguments = bool(fields) or any(argument is not None for argument in (data, model, upstream))
    if resume:
        if name is not None or has_arguments:
            raise VitkitError(
                "experiments.argument-changed", "--resume uses the arguments of --out: leave out all other arguments"
            )
        from vitkit.experiments.comparison_plan import Plan

        with ExitStack() as locks:
            folder = FOLDER.lock(out, locks)
            stored = read_json(folder / PLAN)
            plan = Plan.from_dict(stored.pop("plan"))
            return _finish(EXPERIMENTS[stored["experiment"]], folder, plan, stored)
    if name is None:
        if has_arguments or out is not None:
            raise VitkitError(
                "experiments.experiment-missing",
                f"no experiment is named: write one of {', '.join(EXPERIMENTS)}, or leave out all arguments",
            )
        return _list_experiments()
    experiment = EXPERIMENTS[name]
    if upstream is not None and not isinstance(experiment, PretrainingSizes):
        raise VitkitError(
            "experiments.argument-unused",
            f"{name} does not use --upstream, which applies only to data-size: leave it out",
        )
    request = _Request(
        data=None if data is None else str(data),
        model=None if model is None else str(model),
        upstream=None if upstream is None else str(upstream),
        preset=preset,
        seeds=seeds,
        fields=fields,
        out=out,
    )
    if isinstance(experiment, Costs):
        return _cost(experiment, request)
    if isinstance(experiment, Measurement):
        return _measure(experiment, request)
    if preset == "paper" and data is None:
        raise VitkitError(
            "experiments.argument-missing",
            "--preset paper trains with the published recipe: name your images with --data FOLDER (`vitkit lab cost "
            "--preset paper` counts what the paper's pre-trainings cost)",
        )
    if isinstance(experiment, PretrainingSizes):
        return _transfer(experiment, request)
    assert isinstance(experiment, Ablation)
    return _ablate(experiment, request)


def _list_experiments() -> Result:
    width = max(map(len, EXPERIMENTS))
    entries = tuple(EXPERIMENTS.values())
    by_name = {entry.name: {"question": entry.question, "source": entry.source} for entry in entries}
    return Result(
        "lab",
        [f"{entry.name.ljust(width)}  {entry.question} ({entry.source})" for entry in entries],
        {"experiments": entries},
        json=by_name,
        rows=[{"name": name, **fields} for name, fields in by_name.items()],
    )


# --- Trainings ------------------------------------------------------------------------------------------------


def _ablate(ablation: Ablation, request: _Request) -> Result:
    shared = {**request.fields}
    if request.model is not None:
        shared["model"] = request.model
    with ExitStack() as locks:
        folder = None if request.out is None else FOLDER.reserve(request.out, locks)
        plan, variants = plan_ablation(ablation, request.source, request.preset, request.seeds, shared)
        options = {"preset": request.preset, "seeds": request.seeds, **shared}
        command = _command(ablation, request.source, options)
        folder = folder or _new_folder(ablation, locks)  # not before the plan, which may refuse the arguments
        return _start(ablation, folder, plan, {"command": command, "variants": variants})


def _transfer(experiment: PretrainingSizes, request: _Request) -> Result:
    from vitkit.experiments.lab.data_size import RESNET, plan_sizes, split_by_class

    data, upstream, fields = request.source, request.upstream, request.fields
    base = base_fields(experiment, data, request.preset, fields)
    side = 32 if bundled_name(data) is None else 16  # data with its own recipe, such as the digits, is small
    models = request.model or f"vit_micro_patch4_{side},vit_micro_r_s4_{side},{RESNET}"
    with ExitStack() as locks:
        folder = _new_folder(experiment, locks) if request.out is None else FOLDER.reserve(request.out, locks)
        folder.mkdir(parents=True, exist_ok=True)
        sources = split_by_class(data, folder) if upstream is None else (upstream, data)
        plan, variants, images = plan_sizes(*sources, models, base, fields, request.seeds)
        options = {"model": request.model, "upstream": upstream, "preset": request.preset, "seeds": request.seeds}
        command = _command(experiment, data, {**options, **fields})
        return _start(experiment, folder, plan, {"command": command, "variants": variants, "images": images})


def _start(experiment: Experiment, folder: Path, plan: Plan, described: Mapping[str, Any]) -> Result:
    stored = {"vitkit": vitkit.__version__, "experiment": experiment.name, **described}
    write_json(folder / PLAN, {**stored, "plan": plan.to_dict()})
    for note in plan.notes:
        log.info(note)
    log.info(f"{plural(len(plan.jobs), 'run', 'runs')}, in {folder}")
    return _finish(experiment, folder, plan, stored)


def _finish(experiment: Experiment, folder: Path, plan: Plan, stored: Mapping[str, Any]) -> Result:
    from vitkit.experiments.comparison_runs import train_all

    jobs = []
    for job in plan.jobs:
        weights = str(job.fields["weights"])
        if weights.startswith(FOLDER_PLACEHOLDER):
            weights = str(folder / weights.removeprefix(f"{FOLDER_PLACEHOLDER}/"))
        jobs.append(replace(job, fields={**job.fields, "weights": weights}))
    try:
        diverged = train_all(jobs, folder)
    except Interrupted:
        log.info(f"to continue: vitkit lab --resume --out {folder}")
        raise
    if diverged:
        reasons = [f"{folder / run}: {reason}" for run, reason in diverged.items()]
        raise VitkitError("experiments.training-diverged", "; ".join(reasons))
    if isinstance(experiment, PretrainingSizes):
        from vitkit.experiments.lab.data_size import conclude

        return _write(conclude(experiment, plan, stored, folder))
    assert isinstance(experiment, Ablation)
    figures = {
        **{name: stored[name] for name in ("vitkit", "experiment", "command")},
        **figures_of(experiment, plan, stored["variants"], folder),
        "differs": experiment.differs,
        "column": experiment.column,
    }
    headings, rows = table_of(experiment, figures)
    seeds = len(figures["seeds"])
    images = images_in_words(figures["test_images"], figures["split"])
    remarks = [
        summary_of(figures["pairs"], seeds),
        f"{images}, {plural(seeds, 'seed', 'seeds')}; the most frequent class alone: {100 * figures['chance']:.1f} %",
        *figures["findings"],
        *(pair["verdict"] for pair in figures["pairs"]),
        *(f"claim {claim['outcome']}: {claim['claim']}" for claim in figures["claims"]),
    ]
    return _write(result_of(experiment, figures, headings, rows, remarks, folder))


# --- Measurements ---------------------------------------------------------------------------------------------


def _measure(measurement: Measurement, request: _Request) -> Result:
    unused = request.fields.keys() - {"seed"}
    if unused:
        raise VitkitError(
            "experiments.argument-unused",
            f"{measurement.name} measures a model without training, so {min(unused)} has no effect; leave it out",
        )
    if request.preset == "paper":
        raise VitkitError(
            "experiments.recipe-missing",
            f"{measurement.name} trains nothing and has no recipe: set the model to measure with --model",
        )
    if request.model is None:
        raise VitkitError(
            "experiments.argument-missing",
            f"{measurement.name} measures a model: set a run, a checkpoint or published weights with --model",
        )
    from vitkit.experiments.comparison_images import subject_of

    seed = int(request.fields.get("seed", 0))
    with ExitStack() as locks:
        folder = None if request.out is None else FOLDER.reserve(request.out, locks)
        subject = subject_of(request.model, request.source, request.seeds, seed)
        measured = measurement.measure(subject)
        folder = folder or _new_folder(measurement, locks)
        options = {"model": request.model, "seeds": request.seeds, "seed": seed}
        figures = {
            "vitkit": vitkit.__version__,
            "experiment": measurement.name,
            "command": _command(measurement, request.source, options),
            "model": public_path(request.model),
            "data": public_path(request.source),
            **measured.numbers,
            "findings": list(subject.findings),
            "differs": measurement.differs,
        }
        rows = [tuple(row) for row in measured.rows]
        remarks = [*measured.lines, *subject.findings]
        return _write(result_of(measurement, figures, measured.headings, rows, remarks, folder, measured.arrays))


def _cost(experiment: Costs, request: _Request) -> Result:
    unused = ["--data"] if request.data is not None else []
    unused += sorted(request.fields.keys() - {"image_size"})
    if unused:
        raise VitkitError(
            "experiments.argument-unused",
            f"{experiment.name} times models without images or training, so {unused[0]} has no effect; leave it out",
        )
    from vitkit.experiments.lab.cost import measure_costs, predict_core_days

    if request.preset == "paper":
        given = {"out": request.out, "model": request.model, **request.fields}
        unused = [name for name, value in given.items() if value is not None]
        if unused:
            raise VitkitError(
                "experiments.argument-unused",
                f"{experiment.name} only counts with --preset paper, so {unused[0]} has no effect: leave it out",
            )
        return predict_core_days(experiment)
    side = int(request.fields.get("image_size") or 32)
    models = request.model or f"vit_micro_patch4_{side},vit_micro_r_s4_{side},custom:bit_resnet_micro"
    with ExitStack() as locks:
        folder = None if request.out is None else FOLDER.reserve(request.out, locks)
        result = measure_costs(experiment, models, side)
        command = _command(experiment, None, {"model": request.model, **request.fields})
        figures = {"vitkit": vitkit.__version__, "command": command, **result.figures}
        folder = folder or _new_folder(experiment, locks)
        return _write(result_of(experiment, figures, result.headings, result.cells, result.remarks, folder))


# --- Files ----------------------------------------------------------------------------------------------------


def _new_folder(experiment: Experiment, locks: ExitStack) -> Path:
    from vitkit.training import new_run_folder

    return new_run_folder(f"lab-{experiment.name}", locks)


def _write(result: Result) -> Result:
    from vitkit.text import write_page

    write_json(result.folder / LAB, result.figures)
    write_page(result.folder / PAGE, f"vitkit lab: {result.experiment.name}", result._repr_html_())
    return result


def _command(experiment: Experiment, data: str | None, options: Mapping[str, Any]) -> str:
    """Return the command that repeats the experiment, with the options that differ from their defaults.

    An option that is None is omitted.
    """
    defaults = {"preset": "small", "seeds": 3, "seed": 0}
    changed = {name: value for name, value in options.items() if value != defaults.get(name)}
    model_fields = model_table(None, changed.pop("model_fields", None) or {})
    changed |= {f"model.{name}": value for name, value in model_fields.items()}
    words = ["vitkit", "lab", experiment.name]
    if data is not None:
        words += ["--data", public_path(data)]
    for name, value in changed.items():
        parts = value if isinstance(value, (list, tuple)) else (value,)
        text = ",".join(public_path(part) if isinstance(part, str) else str(part).lower() for part in parts)
        is_option = name in ("model", "upstream", "preset", "seeds")
        words.append(f"--{name} {text}" if is_option else f"--set {name}={text}")
    return " ".join(words)


def plan_ablation(
    ablation: Ablation, data: str, preset: Preset, seeds: int, shared: Mapping[str, Any]
) -> tuple[Plan, list[dict[str, Any]]]:
    """Plan the trainings of an ablation, and return the plan and a description of each variant."""
    from vitkit.data import held_out_split
    from vitkit.experiments.comparison_images import before_training, hash_of_images
    from vitkit.experiments.comparison_plan import ComparisonJob, Plan
    from vitkit.profiling import describe
    from vitkit.training import check_effects, prepared, without_effect, without_vit_fields

    base = base_fields(ablation, data, preset, shared)
    variants = ablation.variants(base_config(base))
    seed = base.get("seed", 0)
    run_seeds = range(seed, seed + seeds)
    jobs, descriptions, notes = [], [], []
    entries: list[tuple[str, SplitImages]] = []  # the images of the variants that start from the user's weights
    images, classes = 0, 0  # the training images and classes of the last of these variants
    folders: dict[str, str] = {}  # of the runs of each variant, without the seed
    for number, variant in enumerate(variants, start=1):
        receiver()("checking the variants", number - 1, len(variants))
        fields = {**variant_fields(base, shared, variant), "split_seed": base.get("split_seed", seed)}
        # The fields of the user count as set by the user, so that an error message does not blame the plan.
        set_by_user = {name: fields[name] for name in shared if name in fields}
        request, left_out = without_vit_fields(Recipe.of(fields, PLANNED).replace(**set_by_user))
        fields = request.set_fields()
        notes += [f"{variant.label}: {reason}" for reason in left_out]
        with prefix_errors(variant.label):
            if variant.after is None and not variant.pretraining:
                start = prepared(request)
                config = start.config
                (split_images,) = start.parts
                entries.append((variant.label, split_images))
                images = split_images.images.table.splits.count("train")
                images = min(images, start.recipe.max_images or images)
                classes = config.num_classes
                check_effects(start.recipe, request)
                unused = without_effect(start.recipe, request)  # such as epochs, if a head is fitted in closed form
                fields = {name: value for name, value in fields.items() if name not in unused}
                fields["method"] = start.recipe.method
                notes += [*start.source.unmatched, *start.source.corrections]
                notes += [f"{variant.label}: {reason}" for reason in start.reasons]
            else:  # the initial weights do not exist yet
                config = base_config(fields).replace(num_classes=classes)
        info = describe(config)
        descriptions.append(
            {"label": variant.label, "paper": variant.paper, "parameters": info.parameters, "gmacs": info.gmacs}
        )
        folders[variant.label] = f"runs/{number}-{re.sub(r'[^a-z0-9]+', '-', variant.label.lower()).strip('-')}"
        for run_seed in run_seeds:
            folder = f"{folders[variant.label]}-seed{run_seed}"
            run_fields = {**fields, "seed": run_seed}
            if variant.after is not None:
                run_fields["weights"] = f"{FOLDER_PLACEHOLDER}/{folders[variant.after]}-seed{run_seed}"
            pretraining = None  # with all training images, even if `max_images` limits those of the training
            if variant.pretraining:
                common = {name: run_fields[name] for name in _PRETRAINING_FIELDS if name in run_fields}
                pretraining = {**common, "logger": "none", **variant.pretraining}
            jobs.append(ComparisonJob(variant.label, run_seed, 1.0, images, run_fields, folder, pretraining))
    jobs.sort(key=lambda job: job.seed)  # all variants of one seed are trained one after another
    test_images = before_training(entries)
    test_images.check()
    notes += test_images.findings()
    _, first_images = entries[0]
    plan = Plan(
        arguments={"experiment": ablation.name, "data": data, "preset": preset},
        models=tuple(variant.label for variant in variants),
        seeds=tuple(run_seeds),
        fractions=(1.0,),
        jobs=tuple(jobs),
        test_hash=hash_of_images(first_images, held_out_split(first_images.images.table)),
        notes=tuple(dict.fromkeys(notes)),
    )
    return plan, descriptions


def figures_of(ablation: Ablation, plan: Plan, described: Sequence[Mapping[str, Any]], out: Path) -> dict[str, Any]:
    """Compute the results of an ablation from its finished runs, in plain JSON types."""
    from vitkit.experiments.comparison_figures import facts_of_test, read_run_predictions, run_figures
    from vitkit.experiments.comparison_images import after_training

    test_images = after_training(((job.model, out / job.folder) for job in plan.jobs), plan.test_hash)
    predictions = read_run_predictions(plan, out, 1.0, test_images)
    labels = [row["label"] for row in described]
    family = predictions.family(labels)
    variants = []
    for i, row in enumerate(described):
        jobs = [job for job in plan.jobs if job.model == row["label"]]
        runs = [run_figures(job, out, row["gmacs"], predictions) for job in jobs]
        variants.append({**row, **family.accuracy_of(i), "runs": runs})
    pairs = pairs_against(ablation.against, labels, predictions)
    return {
        "variants": variants,
        "pairs": pairs,
        "claims": claims_of(ablation, pairs, len(plan.seeds)),
        **facts_of_test(plan, predictions, test_images),
    }


def pairs_against(against: str, labels: Sequence[str], predictions: RunPredictions) -> list[dict[str, Any]]:
    """Compare each variant with the variant `against`, with p-values that are adjusted for these comparisons."""
    from vitkit.experiments.comparison_figures import compare_pairs

    reference = labels.index(against)
    compared = [(i, reference) for i in range(len(labels)) if i != reference]
    tests = compare_pairs(labels, compared, predictions.family(labels), predictions.described, display_name=quoted)
    return [figures for figures, _, _ in tests]


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
