"""Cross-validation: each part of the data is tested once, by a model that was trained on the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

from vitkit.data.pictures import PictureRecord
from vitkit.data.proposals import read_proposals
from vitkit.data.split_file import groups_from_file
from vitkit.data.whereabouts import images_of_run
from vitkit.errors import VitkitError
from vitkit.evaluation import registry
from vitkit.evaluation.headline import headline_of
from vitkit.evaluation.intervals import Interval, fold_intervals
from vitkit.evaluation.metrics import Evaluation, grouped, held_out_split, pooled
from vitkit.evaluation.proposed import evaluate_before
from vitkit.evaluation.registry import read_figures
from vitkit.evaluation.unseen import that_count
from vitkit.model_folder import RECORD
from vitkit.system.files import from_json, write_json
from vitkit.system.progress import Progress
from vitkit.system.run_files import EVALUATION, FOLDS, GROUPS, RECIPE, REPORT, SPLIT, fold_folder
from vitkit.text.html import table, write_page
from vitkit.text.words import interval_text
from vitkit.training.fit import fit_and_report
from vitkit.training.recipe import Recipe
from vitkit.training.recipe_names import name_of, without_places
from vitkit.training.run_folder import Run
from vitkit.training.setup import choose_device
from vitkit.weights import load

_SHOWN = ("accuracy", "balanced_accuracy", "macro_f1", "hamming_loss", "loss")  # of all the figures, in the report


@dataclass(frozen=True)
class FoldFigure:
    """A figure over all images, each tested once, by a model that was not trained on it.

    Attributes:
        mean: the figure of all images; where it is a mean over images, the mean over folds by their size.
        interval: 95 %, see `fold_intervals`; None where the figure has none.
    """

    mean: float | None
    interval: Interval | None

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {"mean": self.mean, "interval_95": None if self.interval is None else list(self.interval)}

    def __str__(self) -> str:
        if self.mean is None:
            return "-"
        if self.interval is None:
            return f"{self.mean:.4f}"
        return f"{self.mean:.4f} (95 %: {interval_text(self.interval, 4)})"


def figures_of_folds(evaluations: Sequence[Evaluation]) -> dict[str, FoldFigure]:
    """Every figure of a cross-validation; no value where the weights had seen all images."""
    if not evaluations:
        return {"accuracy": FoldFigure(None, None)}
    whole, bounds = pooled(evaluations), fold_intervals(evaluations)
    numbers = registry.summary(whole, "multi" if whole.labels.ndim == 2 else "single")
    return {name: FoldFigure(value, bounds.get(name)) for name, value in numbers.items()}


def cross_validate(run: Run, recipe: Recipe) -> None:
    """Train and test every fold that is not done yet, and put their results together in folds.json and report.html.

    Raises:
        VitkitError: a fold's folder is gone, or the images of one that was done before are.
    """
    assert recipe.folds is not None
    folders = [fold_folder(run.folder, number) for number in range(recipe.folds)]
    trained: dict[Path, Evaluation | None] = {}
    for number, folder in enumerate(folders, start=1):
        if not (folder / RECIPE).is_file():
            raise VitkitError(f"{folder} holds no run; begin the cross-validation again with --force")
        if not (folder / REPORT).is_file():
            run.say(f"fold {number} of {recipe.folds}")
            trained[folder] = fit_and_report(replace(run, folder=folder, whole=run.folder), recipe.replace(folds=None))
    results = [read_figures(folder / EVALUATION) for folder in folders]
    if run.team.is_first:
        figures = {} if trained else _known(run.folder / FOLDS)
        if not figures:
            evaluations = [
                trained[folder] if folder in trained else _asked_again(folder, own, recipe, run.progress)
                for folder, own in zip(folders, results, strict=True)
            ]
            figures = figures_of_folds([own for own in evaluations if own is not None])
        numbers = {name: own.to_dict() for name, own in figures.items()}
        write_json(run.folder / FOLDS, {**numbers, "folds": results})
        _write_report(run.folder / REPORT, recipe, results, figures)
        if (unlearned := sum("zero_shot" in own for own in results)) > 0:
            run.say(
                f"note: in {unlearned} of {recipe.folds} folds the model is the zero-shot one: no training was better"
            )
        run.say(f"{headline_of({**numbers, 'folds': results}).words}; report: {run.folder / REPORT}")


def _known(file: Path) -> dict[str, FoldFigure]:
    """What was put together before; nothing where it was not, or without the intervals of today."""
    try:
        stored = from_json(file.read_text(encoding="utf-8"))
        rows = {name: (own["mean"], own["interval_95"]) for name, own in stored.items() if name != "folds"}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
    return {name: FoldFigure(mean, None if ends is None else (ends[0], ends[1])) for name, (mean, ends) in rows.items()}


def _asked_again(folder: Path, numbers: Mapping[str, Any], recipe: Recipe, progress: Progress) -> Evaluation | None:
    """What the model of a fold that was done before says of the images that count, as its report had it."""
    images = images_of_run(folder / SPLIT, progress=progress)
    split = held_out_split(images)
    classifier = load(folder).use(images=len(images.of_split(split)), device=choose_device(recipe))
    judged = evaluate_before(classifier, images, split, read_proposals(folder), partial(progress, "evaluating"))
    seen = (numbers.get("seen") or {"paths": ()})["paths"]
    return that_count(grouped(judged.before, groups_from_file(folder / GROUPS)), dict.fromkeys(seen))


def _unseen(folder: Path) -> str:
    """What is known of the images that the folds' models were tested on."""
    record = fold_folder(folder, 0) / RECORD
    if record.is_file() and PictureRecord.from_bytes(record.read_bytes(), record).is_whole:
        return "had not seen it"
    return "was not trained on it; whether the weights that it began from had seen it is not recorded"


def _write_report(
    path: Path, recipe: Recipe, results: Sequence[dict[str, Any]], figures: dict[str, FoldFigure]
) -> None:
    shown = {name: own for name, own in figures.items() if name in _SHOWN}
    rows = [
        [
            f'<a href="fold-{number}/{REPORT}">fold {number}</a>{", zero-shot" if "zero_shot" in own else ""}',
            *("-" if own[name] is None else f"{own[name]:.4f}" for name in shown),
            str(own["images"]),
        ]
        for number, own in enumerate(results, start=1)
    ]
    rows.append(["all", *map(str, shown.values()), str(sum(own["images"] for own in results))])
    accuracy = figures["accuracy"]
    headline = headline_of({**{name: own.to_dict() for name, own in figures.items()}, "folds": results})
    caveats = [f"<p>{escape(caveat.text[0].upper() + caveat.text[1:])}.</p>" for caveat in headline.caveats]
    first = "<p>No accuracy can be given.</p>"
    if accuracy.mean is not None and accuracy.interval is not None:
        interval = f'<span class="soft">(95 %: {interval_text([100 * end for end in accuracy.interval], 1)})</span>'
        first = f'<p><span class="figure">{100 * accuracy.mean:.1f} %</span> {headline.figure} {interval}</p>'
    title = f"{name_of(recipe)} on {without_places(recipe).data}, {recipe.folds} folds"
    body = [
        f"<h1>{escape(title)}</h1>",
        first,
        *caveats,
        f"<p>Every image was tested once, by a model that {_unseen(path.parent)}.</p>",
        table(rows, ["", *(name.replace("_", " ") for name in shown), "images"]),
    ]
    write_page(path, title, body)
