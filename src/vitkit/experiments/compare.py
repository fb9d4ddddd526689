"""`vitkit.compare`: train several models on the same images, and test which is better.

The result provides lines for the terminal, a CSV table and an HTML page. This module also measures the costs of the
models: size, operations, and images per second in prediction.
"""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import vitkit
from vitkit.errors import Interrupted, VitkitError
from vitkit.evaluation import images_in_words
from vitkit.experiments.comparison_request import arguments_of, fields_of_request
from vitkit.experiments.comparison_table import COMPARISON, FOLDER, HEADINGS, PAGE, PLAN, TABLE, cells, costs_of, row_of
from vitkit.system import (
    EVALUATION,
    PREDICTIONS,
    RECIPE,
    Progress,
    log,
    public_path,
    read_json,
    silent,
    write_json,
    write_text,
)
from vitkit.text import Between, aligned, check_arguments, plural
from vitkit.training import Recipe
from vitkit.verbs import Result, check_data, csv_table

if TYPE_CHECKING:
    from vitkit.experiments.comparison_plan import Plan


_TABLE_KEYS = (  # columns of comparison.csv, one row per run
    *("model", "seed", "fraction", "training_images", "accuracy", "loss", "ece", "epochs", "seconds"),
    *("train_images_per_s", "training_flops", "folder", "split", "images", "caveats"),
)


@check_arguments
def compare(
    data: str | Path | Sequence[str] | None = None,
    models: str | Sequence[str] | None = None,
    recipe: str | Path | Recipe | None = None,
    *,
    seeds: Annotated[int, Between(1)] = 3,
    budget: str | None = None,
    fractions: str | float | Sequence[float] = "1",
    out: Path | str | None = None,
    resume: bool = False,
    progress: Progress = silent,
) -> Result:
    """Test which of several models is better: finished runs, or models that are trained in the same way.

        import vitkit

        models = ["vit_micro_patch4_16", "vit_micro_r_s4_16"]
        found = vitkit.compare("digits", models, vitkit.Recipe(epochs=1, max_images=200))
        print(found.verdicts)

    On the command line: `vitkit compare digits --models vit_micro_patch4_16,vit_micro_r_s4_16 --set epochs=2`, or
    `vitkit compare runs/digits-1 runs/digits-2` for two finished runs.

    Args:
        data: folder of class folders, folder with train/ and val/, or a name such as digits. Two or more finished runs,
            without `models`, are compared as they are, on the images that all of them were tested on.
        models: names of models, NAME@WEIGHTS (NAME@none from scratch), or RECIPE.toml for a model with its own recipe,
            separated by commas. A list is accepted, too.
        recipe: TOML file, or the name of a bundled recipe, for all models. A `vitkit.Recipe` is accepted, too.
        seeds: number of trainings of each model, with consecutive seeds that start from `seed`.
        budget: the computation of each training, as flops=F, from which the number of epochs follows.
        fractions: the fractions of the training images, such as 0.1,0.3,1; the test images stay the same. Larger
            subsets contain the smaller ones.
        out: folder of the comparison; by default the next runs/compare-NAME-N.
        resume: continue the comparison in `out` with its original arguments.
        progress: called with the current task, the number of finished items and their total.

    Returns:
        A result with the facts `folder` (of comparison.html, comparison.json, comparison.csv and the runs), `report`
        (the page), `figures` (the content of comparison.json), `models` (the numbers of each model and of its runs),
        `pairs` (for each pair of models the difference in accuracy, its 95 % interval, the adjusted p-value and a
        verdict), `verdicts`, and `summary` (the best model, and the effect of the seed). `rows()` returns the table: a
        row for each model.

    Raises:
        VitkitError: a model cannot be trained on the data, or `out` is in use, not empty, or contains another
            comparison. A model whose training diverges is left out of the results, with a note.
        Interrupted: a signal stopped the comparison; `resume` continues it.
        OSError: the folder cannot be written.
    """
    source, fields = fields_of_request(recipe, "a comparison")
    sources = [data] if isinstance(data, (str, Path)) else [source for source in data or () if source is not None]
    files = (RECIPE, PREDICTIONS, EVALUATION)  # of a finished run
    runs = [folder for folder in map(Path, sources) if all((folder / file).is_file() for file in files)]
    if models is None and runs and len(sources) > 1:
        if len(runs) < len(sources):
            other = next(source for source in sources if Path(source) not in runs)
            message = f"{other} is not a finished run, but {runs[0]} is: name only runs, or data and --models"
            raise VitkitError("experiments.run-missing", message)
        if (recipe, seeds, budget, fractions, resume) != (None, 3, None, "1", False):
            message = "finished runs are compared as they are: leave out all arguments but the runs and --out"
            raise VitkitError("experiments.argument-unused", message)
        from vitkit.experiments.trained import compare_trained

        return compare_trained(runs, out)
    if len(sources) > 1:
        message = "models are compared on one data set: run vitkit compare for each of them"
        raise VitkitError("experiments.data-several", message)
    arguments = arguments_of(sources[0] if sources else None, models, source, seeds, fractions, budget)
    with ExitStack() as locks:
        if resume:
            if fields or arguments != arguments_of(None, None, None, 3, "1", None):  # the defaults
                message = "--resume uses the arguments of --out: leave out all other arguments"
                raise VitkitError("experiments.argument-changed", message)
            from vitkit.experiments.comparison_plan import Plan

            folder = FOLDER.lock(out, locks)
            plan = Plan.from_dict(read_json(folder / PLAN)["plan"])
        else:
            folder, plan = _plan(out, arguments, fields, locks)
        from vitkit.experiments.comparison_runs import train_all

        try:
            diverged = train_all(plan.jobs, folder)
        except Interrupted:
            log.info(f"to continue: vitkit compare --resume --out {folder}")
            raise

        # Models with a diverged training are left out, with a note.
        failed = {job.model: f"{job.described}: {diverged[job.folder]}" for job in plan.jobs if job.folder in diverged}
        if len(failed) == len(plan.models):
            raise VitkitError("experiments.training-diverged", "; ".join(failed.values()))
        notes = [f"{name} is left out of what follows: {reason}" for name, reason in failed.items()]
        for note in notes:
            log.info(note)
        remaining = tuple(name for name in plan.models if name not in failed)
        jobs = tuple(job for job in plan.jobs if job.model not in failed)
        return _conclude(replace(plan, models=remaining, jobs=jobs, notes=(*plan.notes, *notes)), folder)


def _plan(
    out: str | Path | None, arguments: dict[str, Any], fields: dict[str, Any], locks: ExitStack
) -> tuple[Path, Plan]:
    """Plan a comparison, and write the plan into a new folder, which stays locked until `locks` is closed."""
    for name in ("data", "models"):
        if arguments[name] is None:
            raise VitkitError(
                "experiments.argument-missing",
                f"no {name}: vitkit compare DATA --models NAME,NAME, or vitkit compare RUN RUN",
            )
    check_data(arguments["data"])
    from vitkit.data import read_corrected
    from vitkit.experiments.comparison_plan import make_plan
    from vitkit.training import check_output_folder, new_run_folder

    reading = {name: fields[name] for name in ("layout", "follow_links") if name in fields}
    table = read_corrected(arguments["data"], fields.get("labels"), **reading)
    check_output_folder(out, table, None, "none")
    if out is not None:
        FOLDER.reserve(out, locks)
    plan = make_plan(arguments, fields)
    folder = Path(out) if out is not None else new_run_folder(f"compare-{table.root.name}", locks)
    write_json(folder / PLAN, {"vitkit": vitkit.__version__, "fields": fields, "plan": plan.to_dict()})
    for note in plan.notes:
        log.info(note)
    log.info(f"{plural(len(plan.jobs), 'run', 'runs')}, in {folder}")
    return folder, plan


def _conclude(plan: Plan, folder: Path) -> Result:
    """Compare the models on the basis of their finished runs, and write the results into the folder."""
    from vitkit.experiments import comparison_figures as numbers
    from vitkit.experiments.comparison_images import after_training
    from vitkit.reporting import write_comparison

    device = plan.jobs[0].fields.get("device", "auto")
    test_images = after_training(((job.model, folder / job.folder) for job in plan.jobs), plan.test_hash)
    by_fraction = [numbers.read_run_predictions(plan, folder, fraction, test_images) for fraction in plan.fractions]
    families = [numbers.family_of(plan, predictions) for predictions in by_fraction]
    run_of_model: dict[str, Path] = {}  # the first run of each model on the largest fraction
    for job in plan.jobs:
        if job.fraction == plan.fractions[-1]:
            run_of_model.setdefault(job.model, folder / job.folder)
    costs = costs_of(run_of_model, device)
    models = [numbers.model_figures(name, plan, folder, by_fraction, families, costs[name]) for name in plan.models]
    pairs_by_fraction = [
        numbers.pair_figures(plan, predictions, family)
        for predictions, family in zip(by_fraction, families, strict=True)
    ]
    figures = {
        "data": public_path(plan.arguments["data"]),
        "vitkit": vitkit.__version__,
        **numbers.facts_of_test(plan, by_fraction[-1], test_images),
        "fractions": list(plan.fractions),
        "budget": plan.arguments["budget"],
        "models": models,
        "best": numbers.best_model(plan, families[-1]),
        "luck": numbers.seed_variation(plan, families[-1]),
        "pairs": pairs_by_fraction[-1],
        "pairs_by_fraction": list(itertools.chain.from_iterable(pairs_by_fraction)),
        "findings": numbers.findings_of(models, by_fraction[-1], test_images),
    }
    rows = []
    for model in models:
        for run in model["runs"]:
            values = {**run, "model": model["name"], "caveats": "; ".join(run["caveats"])}
            rows.append({key: values[key] for key in _TABLE_KEYS})
    write_text(folder / TABLE, csv_table(rows, end="\n"))
    write_comparison(folder / PAGE, figures, list(HEADINGS.values()), [cells(model) for model in models])
    write_json(folder / COMPARISON, figures)
    return _result(folder, figures)


def _result(folder: Path, figures: dict[str, Any]) -> Result:
    from vitkit.reporting import pictures_of, verdict_of_comparison
    from vitkit.text import table

    models, findings = figures["models"], figures["findings"]
    best = {model["name"]: model for model in models}[figures["best"]["model"]]
    summary = [figures["best"]["sentence"]]
    if figures["luck"] is not None:
        summary.append(figures["luck"]["sentence"])
    verdicts = [pair["verdict"] for pair in figures["pairs"]]
    verdict = verdict_of_comparison(figures).sentence
    images = images_in_words(figures["test_images"], figures["split"])
    counts = f"{plural(len(models), 'model', 'models')} on {figures['data']}"
    about = f"{counts}: {images}, {plural(len(figures['seeds']), 'seed', 'seeds')}"
    caveats = f" ({'; '.join(best['caveats'])})" if best["caveats"] else ""
    headings, rows = list(HEADINGS.values()), [cells(model) for model in models]
    page = folder / PAGE
    run = folder / best["runs"][-1]["folder"]

    def html() -> str:
        body = [[escape(cell) for cell in row] for row in rows]
        paragraphs = "".join(f"<p>{escape(line)}</p>" for line in [*summary, *verdicts, *findings])
        return f"<p>{escape(verdict)}. {escape(about)}</p>{table(body, headings)}{paragraphs}"

    return Result(
        "compare",
        [
            about,
            *aligned([headings, *rows]),
            "",
            *summary[1:],
            *verdicts,
            *findings,
            f"{verdict}.",
            f"{summary[0]}, on {images}{caveats}; page: {page}",
        ],
        {
            "folder": folder,
            "figures": figures,
            "models": models,
            "pairs": figures["pairs"],
            "report": page,
            "verdicts": verdicts,
            "summary": summary,
        },
        json=figures,
        rows=[row_of(model) for model in models],
        pictures=pictures_of(models),
        html=html,
        summary=f"{verdict}. {about}",
        next_step=f"open {shlex.quote(str(page))}, or vitkit predict {shlex.quote(str(run))} PHOTOS",
    )
