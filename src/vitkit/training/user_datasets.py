"""Training on datasets of the caller's own: any that give (image, label) by index, as torchvision's do.

There are no files to look through, so there is no doctor, no split to draw and no page of mistakes; what can be held is
held: labels are read once, validation pictures that are training pictures too, or that the weights had seen before, do
not count, and the figures say that validation images chose the model.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import vitkit
from vitkit.classifier import Classifier
from vitkit.data.batches import BatchedImages
from vitkit.data.doctor.examine import find_twins
from vitkit.data.overlap import exposures, find_overlap
from vitkit.data.pictures import make_record
from vitkit.data.preprocess import Preprocess
from vitkit.data.splits import check_trainable
from vitkit.data.table import ImageTable
from vitkit.data.user_datasets import NAME, Datasets, EvaluationOf, Survey, TrainingOf, survey
from vitkit.errors import VitkitError
from vitkit.evaluation.chosen import by_name_in_words, chosen_on
from vitkit.evaluation.headline import headline_of
from vitkit.evaluation.metrics import Evaluation
from vitkit.evaluation.unseen import DOUBTS, all_figures, counted_in, describe, seen_of
from vitkit.model_folder import WEIGHTS
from vitkit.reporting import plots
from vitkit.reporting.evaluation_report import draw, write_report
from vitkit.system.files import read_json, write_json, write_text
from vitkit.system.progress import Progress, silent
from vitkit.system.run_files import CLASS_INDICES, EVALUATION, METRICS, PICTURES, PREPROCESS, RECIPE, REPORT
from vitkit.training.architecture import weights_of
from vitkit.training.defaults import complete, spare_patches
from vitkit.training.descent import learn
from vitkit.training.distributed import Team, assemble, check_team
from vitkit.training.effects import check_effects
from vitkit.training.finalize import settle_by, standing_of
from vitkit.training.first_head import settle_head
from vitkit.training.fit import before_training
from vitkit.training.lineage import ancestry_of
from vitkit.training.loggers import check_watchers
from vitkit.training.metrics_file import read_metrics
from vitkit.training.probe import HeadImages, fit_head
from vitkit.training.recipe import Recipe, build
from vitkit.training.recipe_files import load_of_run
from vitkit.training.recipe_names import name_of, without_places
from vitkit.training.run_folder import Run, check_overwritten, clear, going_on, hold_again, hold_given, hold_next
from vitkit.training.setup import augment_of, choose_device, choose_workers, start_of
from vitkit.training.summary import draw_data
from vitkit.training.teacher import Teacher
from vitkit.weights import load
from vitkit.weights.preprocessing import describe as described
from vitkit.weights.preprocessing import preprocess_of
from vitkit.weights.read import reading_once

_DEALING = ("layout", "labels", "split", "split_from", "group_by", "folds", "max_images", "split_seed")
OF_FILES = ("data", *_DEALING, "find_lr", "cache", "select_time")  # fields


def train_on(
    datasets: Datasets,
    fields: dict[str, Any],
    out: str | Path | None,
    *,
    force: bool,
    run_of: Run,
    named: Collection[str] = (),
) -> Path:
    """Train on these datasets, and leave a run folder: recipe, metrics.csv, the model, figures and a page.

    Args:
        datasets: to learn from and to judge by.
        fields: of the recipe; those that are about files are refused.
        out: the run folder; by default the next free `runs/datasets-N`.
        force: write over the run that is in `out`.
        run_of: who is told, and who looks on; its folder is of no account.
        named: the fields that the caller named, as opposed to those of a recipe file.

    Raises:
        VitkitError: what is given cannot be trained on.
        Interrupted: a signal stopped the run; the folder holds the best model so far.
    """
    _refuse(fields)
    from_scratch = fields.get("weights") == "none" or fields.get("method") == "scratch"
    asked = {"method": "scratch" if from_scratch else "full", "lp_ft": False, "cache": "none", **fields}
    recipe = build(asked, "flags")
    check_watchers(recipe, run_of.callbacks, run_of.loggers)
    team = assemble(recipe.devices, recipe.nodes, choose_device(recipe))
    check_overwritten(out, recipe.teacher, weights_of(recipe))
    found = survey(datasets, run_of.watch if team.is_first else silent)
    check_trainable(found.table)
    recipe, reasons = complete(asked, found.table)
    reasons += check_effects(recipe, fields, named)
    check_team(recipe, team)
    recipe, of_head = settle_head(recipe, asked, found.table, run_of.watch)
    config, own = start_of(recipe, found.table.classes, run_of.watch)
    found.check(own)
    preprocess, of_pixels = _preprocess_of(datasets, found, own)
    recipe = spare_patches(recipe, asked, config)
    with ExitStack() as hold, reading_once():
        folder = team.by_first(partial(_begin, out, force, recipe, preprocess, found.table, hold))
        run = replace(run_of, folder=folder, team=team)
        run.say(f"vitkit {vitkit.__version__}: training {name_of(recipe)} on {NAME}")
        for reason in (*reasons, *of_head, *of_pixels):
            run.say(reason)
        if found.shared:
            run.say(f"problem: {found.shared} validation images are training images too: no figure counts them")
        _go(run, recipe, datasets, found)
    return folder


def resume_on(datasets: Datasets, run_of: Run) -> None:
    """Go on with such a run, in whose folder the recipe is.

    Raises:
        VitkitError: the folder holds no such run, or the datasets are others.
    """
    folder = run_of.folder
    if not (folder / RECIPE).is_file():
        raise VitkitError(f"{folder} is not a run folder: it has no {RECIPE}")
    recipe = load_of_run(folder / RECIPE)
    if recipe.data is not None:
        raise VitkitError(f"{folder} was trained on files, in {recipe.data}: leave out train_dataset")
    check_watchers(recipe, run_of.callbacks, run_of.loggers)
    team = assemble(recipe.devices, recipe.nodes, choose_device(recipe))
    check_team(recipe, team)
    with ExitStack() as hold, reading_once():
        team.by_first(partial(hold_again, folder, hold))
        _go(replace(run_of, team=team), recipe, datasets, survey(datasets, run_of.watch))


def _refuse(fields: dict[str, Any]) -> None:
    given = [name for name in OF_FILES if fields.get(name) not in (None, False)]
    if given:
        raise VitkitError(f"{given[0]} is about files, and train_dataset has none: leave it out")


def _preprocess_of(datasets: Datasets, found: Survey, own: Preprocess) -> tuple[Preprocess, list[str]]:
    """How pictures are prepared for the model, and what is worth a line of that.

    Raises:
        VitkitError: what the caller says is no preprocessing, or is for another size than the model's.
    """
    if datasets.preprocess is not None:
        named = preprocess_of(datasets.preprocess, own)
        return named, [f"files are prepared as you say: {described(named.to_dict())}"]
    preprocess, told = found.preprocess_of(datasets, own)
    if preprocess != own and not preprocess.unknown:
        told = [f"files are prepared as the datasets' transforms say: {described(preprocess.to_dict())}", *told]
    return preprocess, told


def _begin(
    out: str | Path | None, force: bool, recipe: Recipe, preprocess: Preprocess, table: ImageTable, hold: ExitStack
) -> Path:
    if out is not None:
        hold_given(out, hold, force=force)
    folder = Path(out) if out is not None else hold_next("datasets", hold)
    clear(folder)
    write_json(folder / PREPROCESS, preprocess.to_dict())
    write_json(folder / CLASS_INDICES, dict(enumerate(table.classes)))
    write_text(folder / RECIPE, recipe.to_toml())
    return folder


def _go(run: Run, recipe: Recipe, datasets: Datasets, found: Survey) -> None:
    table, team = found.table, run.team
    with going_on(run, f'vitkit.train(resume="{run.folder}", train_dataset=..., val_dataset=...)'):
        classifier, teacher = before_training(run, recipe, table, found.digest)
        classifier.preprocess = Preprocess.from_dict(read_json(run.folder / PREPROCESS))
        record, seen = team.by_first(partial(_look_up, recipe, classifier, teacher, found, run.watch))
        classifier.pictures = record
        data, of_head = _data_of(recipe, datasets, table, classifier, team)
        if team.is_first:
            assert isinstance(data.train, TrainingOf)
            draw_data(run.folder, table, data.train, recipe.seed)
        counts = ", ".join(f"{len(table.of_split(name))} {name}" for name in ("train", "val"))
        run.say(f"{len(table.classes)} classes; images: {counts}")
        if recipe.method != "probe":
            learn(run, recipe, table, classifier, teacher, data, found.contents, of_head)
        elif team.is_first and not (run.folder / WEIGHTS).is_file():  # else a resumed run had its head already
            fit_head(run, recipe, table, classifier, of_head)
        team.by_first(partial(_conclude, run, recipe, data.val, seen))


@dataclass(frozen=True)
class _Seen:
    """What the weights had seen of the validation images: trained on them, or copies of them, in this run or before.

    Attributes:
        roles: by the stand-in for the path.
        doubt: why there may be more of them; empty: there are none.
    """

    roles: dict[str, str]
    doubt: str


def _look_up(
    recipe: Recipe, classifier: Classifier, teacher: Teacher | None, found: Survey, progress: Progress
) -> tuple[bytes, _Seen]:
    """The record of what the weights will have seen after the run, and what that says of the validation images."""
    before = ancestry_of(recipe, None if teacher is None else teacher.pictures, progress)
    facts, table = found.facts(classifier.preprocess), found.table
    overlap = find_overlap(before, table, facts)
    roles = exposures(table, find_twins(table, facts), overlap)
    labels = [table.name_of(i) for i in range(len(table))]
    record = before.merge(make_record(facts, labels, roles, is_whole=found.is_certain))
    seen = seen_of({path: roles[i] for i, path in enumerate(table.paths) if table.splits[i] == "val"}, "val")
    is_doubtful = bool(before.seen) and not found.is_certain
    return record.to_bytes(), _Seen(seen, _DOUBT if is_doubtful else DOUBTS[overlap.looked_for])


# Where weights begin from a run: its pictures are known again by their looks.
_DOUBT = "whether the weights had seen others cannot be known of tensors, or of pictures that change"


def _data_of(
    recipe: Recipe, datasets: Datasets, table: ImageTable, classifier: Classifier, team: Team
) -> tuple[BatchedImages, HeadImages]:
    """The images in batches, and as a head is fitted to them."""
    labels = {name: table.of_split(name).labels for name in ("train", "val")}
    preprocess, val = classifier.preprocess, datasets.val if datasets.val is not None else []
    augmented = TrainingOf(datasets.train, labels["train"], "train", preprocess, augment_of(recipe), recipe.seed)
    held_out = EvaluationOf(val, labels["val"], "val", preprocess)
    batches = BatchedImages(
        augmented,
        held_out,
        table,
        batch_size=recipe.batch_size,
        workers=choose_workers(recipe, preprocess.size),
        seed=recipe.seed,
        balanced=recipe.balance == "sampler",
        process=(team.rank, team.size),
    )
    plain = EvaluationOf(datasets.train, labels["train"], "train", preprocess)
    return batches, HeadImages(plain, augmented, held_out)


def _conclude(run: Run, recipe: Recipe, val: Any, seen: _Seen) -> None:
    """Calibrate the model that was kept, and write down its figures on validation images."""
    if not len(val):
        run.say("no validation images: the confidences are not calibrated, and there are no figures")
        return
    classifier = load(run.folder).use(images=len(val), device=choose_device(recipe))
    before = standing_of(classifier)
    settle_by(run.folder, classifier, lambda: _ask(classifier, val, run.progress))
    if standing_of(classifier) != before:  # the head has changed, and what computes has weights of its own
        classifier = classifier.use(images=len(val), device=choose_device(recipe))
    evaluation = _ask(classifier, val, run.progress)
    evaluation = replace(evaluation, chosen=chosen_on("val", recipe.__dict__, is_multi=False))
    numbers = all_figures(evaluation, seen.roles, classifier.provenance, classifier.computation, seen.doubt)
    write_json(run.folder / EVALUATION, numbers)
    if (spoilt := describe(numbers)) is not None:
        run.say(f"note: {spoilt}")
    _write_report(run, recipe, classifier, counted_in(evaluation, numbers), numbers)
    loss = "" if numbers["loss"] is None else f" ({numbers['loss']:.4f} log loss)"
    run.say(f"{headline_of(numbers).words}{loss}")


def _ask(classifier: Classifier, val: EvaluationOf, progress: Progress) -> Evaluation:
    batches = torch.utils.data.DataLoader(val, batch_size=64)
    found: list[Tensor] = []
    with torch.inference_mode():
        for images, _ in batches:
            found.append(classifier.probabilities(images).float().cpu())
            progress("evaluating", sum(map(len, found)), len(val))
    return Evaluation(
        split="val",
        classes=classifier.classes,
        paths=tuple(val.paths),
        labels=np.array(val.labels),
        probabilities=torch.cat(found).numpy(),
        temperature=classifier.temperature,
    )


def _write_report(
    run: Run, recipe: Recipe, classifier: Classifier, evaluation: Evaluation, numbers: dict[str, Any]
) -> None:
    folder = run.folder
    drawn = {"Curves": plots.curves(read_metrics(folder / METRICS), classifier.provenance["metrics"]["epoch"])}
    drawn |= draw(evaluation, None)
    for caption, picture in drawn.items():
        plots.save_figure(picture, folder / PICTURES[caption])
    write_report(
        folder / REPORT,
        title=f"{name_of(recipe)} on {NAME}",
        evaluation=evaluation,
        numbers=numbers,
        root=None,
        facts={
            "data": NAME,
            **by_name_in_words(classifier.provenance),
            "made with": ", ".join(f"{n} {v}" for n, v in classifier.provenance["versions"].items()),
        },
        findings=[
            *([f"problem: {spoilt}"] if (spoilt := describe(numbers)) else []),
            "the images came from datasets, not files: nobody looked for wrong labels",
        ],
        pictures={caption: (folder / PICTURES[caption]).read_bytes() for caption in drawn},
        recipe=without_places(recipe).to_toml(),
    )
