"""Train on datasets of the caller: Python objects that return (image, label) by index.

As they have no files, no files are checked and no images are split. All items are read once before the training to get
the labels. Validation images that are also training images are excluded from the figures. The figures mention that the
model was selected on the validation images.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vitkit.classifier import Classifier
from vitkit.data.doctor.examine import find_twins
from vitkit.data.loading import BatchedImages, Images
from vitkit.data.preprocess import Preprocess
from vitkit.data.preprocess import describe as described
from vitkit.data.seen import exposures, find_overlap, make_record
from vitkit.data.splits import check_trainable
from vitkit.data.user_datasets import NAME, Datasets, EvaluationOf, Survey, TrainingOf, survey
from vitkit.errors import VitkitError
from vitkit.evaluation.figures import (
    DOUBTS,
    all_figures,
    by_name_in_words,
    chosen_on,
    counted_part,
    describe,
    doubt_of,
    seen_of,
)
from vitkit.evaluation.headline import headline_of
from vitkit.evaluation.metrics import Evaluation
from vitkit.reporting import plots
from vitkit.reporting.evaluation_report import pictures_of, write_report
from vitkit.system.files import read_json, write_json, write_text
from vitkit.system.progress import progress
from vitkit.system.run_files import CLASS_INDICES, EVALUATION, PREPROCESS, RECIPE, REPORT, check_run_folder
from vitkit.training.defaults import check_effects, complete, weights_of
from vitkit.training.distributed import check_team
from vitkit.training.finalize import ValidationFacts, calibrate_on, correction_of
from vitkit.training.inputs import Inputs
from vitkit.training.lineage import ancestry_of
from vitkit.training.probe import HeadImages
from vitkit.training.recipe import Recipe, name_of, without_places
from vitkit.training.request import NONE, Hooks, load_of_run
from vitkit.training.run import Stages, begun_folder, carry_out, continue_run, introduce
from vitkit.training.run_folder import Run, check_overwritten
from vitkit.training.stages.fit import begin_model, draw_classes, train_model
from vitkit.training.stages.report import pictures_for_page
from vitkit.training.start import augment_of, choose_device, choose_workers, resolve_model
from vitkit.training.teacher import Teacher
from vitkit.weights.preprocessing import preprocess_of

_DEALING = (
    *("layout", "follow_links", "labels", "split", "split_from", "group_by", "folds", "max_images", "split_seed"),
)
OF_FILES = ("data", *_DEALING, "find_lr", "cache")  # fields


def train_on(
    datasets: Datasets,
    asked: Recipe,
    out: str | Path | None,
    *,
    force: bool = False,
    hooks: Hooks = NONE,
) -> Path:
    """Train on the user's datasets, and write a run folder with the recipe, metrics.csv, the model and the report.

    Args:
        datasets: the datasets for training and validation.
        asked: the requested recipe. Fields that only apply to image files are refused.
        out: the run folder; by default the next free `runs/datasets-N`.
        force: overwrite the run in `out`.
        hooks: objects of the caller that observe the training, or replace parts of it.

    Raises:
        VitkitError: the datasets or the recipe cannot be trained on.
    """
    if of_files := [name for name in OF_FILES if name in asked.given and getattr(asked, name) not in (None, False)]:
        raise VitkitError(f"{of_files[0]} applies to files, and a data set in memory has none: leave it out")
    is_from_scratch = asked.weights == "none" or asked.method == "scratch"
    usual = Recipe(method="scratch" if is_from_scratch else "full", lp_ft=False, cache="none")
    run = Run(usual.updated(asked), None if out is None else Path(out), hooks=hooks)
    return carry_out(run, _Work(datasets).stages, force=force)


def resume_on(datasets: Datasets, folder: Path, hooks: Hooks = NONE) -> Path:
    """Continue a run on the user's datasets, with the recipe in its folder.

    Raises:
        VitkitError: the folder contains no run on datasets, or the datasets differ from those of the run.
    """
    check_run_folder(folder)
    recipe = load_of_run(folder / RECIPE)
    if recipe.data is not None:
        raise VitkitError(f"{folder} was trained on files, in {recipe.data}: leave out the data set in memory")
    return continue_run(Run(recipe, hooks=hooks), folder, _Work(datasets).stages)


@dataclass
class _Work:
    """The stages of a run on the caller's datasets."""

    datasets: Datasets
    preprocess: Preprocess | None = None

    @property
    def stages(self) -> Stages:
        return Stages((self.open,), self.write, self.fit, (self.conclude,), _again)

    @cached_property
    def survey(self) -> Survey:
        return survey(self.datasets)

    def open(self, run: Run) -> None:
        """Read the labels, complete the recipe, and open the weights."""
        asked = run.asked
        check_overwritten(run.out, asked.teacher, weights_of(asked))
        table = run.source = self.survey.table
        check_trainable(table)
        recipe, reasons = complete(asked, table)
        reasons += check_effects(recipe, asked)
        check_team(recipe, run.team)
        run.blueprint, of_model = resolve_model(recipe, asked.set_fields(), table)
        self.survey.check(run.blueprint.preprocess)
        self.preprocess, of_pixels = _preprocess_of(self.datasets, self.survey, run.blueprint.preprocess)
        run.recipe, run.reasons = run.blueprint.recipe, [*reasons, *of_model, *of_pixels]
        if run.out is not None and run.reserve is not None:
            run.reserve(run.out)

    def write(self, run: Run, hold: ExitStack) -> None:
        """Choose the folder, and write what resuming needs."""
        assert self.preprocess is not None
        with begun_folder(run, hold, "datasets"):
            write_json(run.folder / PREPROCESS, self.preprocess.to_dict())
            write_json(run.folder / CLASS_INDICES, dict(enumerate(run.source.classes)))
            write_text(run.folder / RECIPE, run.recipe.to_toml())
            introduce(run, f"training {name_of(run.recipe)} on {NAME}")
            if shared := self.survey.shared:
                run.say(f"problem: {shared} validation images are training images too and are not counted")

    def fit(self, run: Run) -> None:
        """Train the model."""
        table, team = self.survey.table, run.team
        run.inputs = Inputs(table, self.survey.digest, self.survey.contents, {})
        classifier, teacher = begin_model(run)
        classifier.preprocess = self.preprocess or Preprocess.from_dict(read_json(run.folder / PREPROCESS))
        classifier.pictures, self.seen = team.broadcast_from_main(
            partial(_look_up, run, classifier, teacher, self.survey)
        )
        data, head_images = _data_of(run, self.datasets, classifier)
        if team.is_main:
            draw_classes(run)
        counts = ", ".join(f"{len(table.of_split(name))} {name}" for name in ("train", "val"))
        run.say(f"{len(table.classes)} classes; images: {counts}")
        run.classifier, self.val = train_model(run, classifier, teacher, data, head_images), data.val

    def conclude(self, run: Run) -> None:
        """Calibrate the model, and evaluate it on the validation images if there are any."""
        val, chosen, predictions = self.val, chosen_on("val", run.recipe.to_dict()), run.out_of_fold
        if not len(val):
            how = "not calibrated"
            if predictions is not None:
                now = partial(predictions.evaluation, run.classifier)
                calibrate_on(run.classifier, now, ValidationFacts(chosen, folds=predictions.folds))
                run.classifier.save(run.folder)
                how = "calibrated by cross-validation of the training images"
            run.say(f"no validation images: the confidences are {how}, and there are no figures")
            return
        classifier = run.classifier.use(images=len(val), device=choose_device(run.recipe))
        before = correction_of(classifier)
        calibrate_on(classifier, lambda: _ask(classifier, val), ValidationFacts(chosen, seen=self.seen.roles))
        classifier.save(run.folder)
        if correction_of(classifier) != before:  # the head has changed, of which a backend has a copy
            classifier = classifier.use(images=len(val), device=choose_device(run.recipe))
        evaluation = replace(_ask(classifier, val), chosen=chosen)
        about, doubt = classifier.computation, self.seen.doubt
        run.numbers = all_figures(evaluation, self.seen.roles, classifier.provenance, about, doubt)
        write_json(run.folder / EVALUATION, run.numbers)
        spoilt = describe(run.numbers)
        if spoilt is not None:
            run.say(f"note: {spoilt}")
        _write_report(run, classifier, counted_part(evaluation, run.numbers), spoilt)
        loss = "" if run.numbers["loss"] is None else f" ({run.numbers['loss']:.4f} log loss)"
        run.say(f"{headline_of(run.numbers).words}{loss}")


def _again(folder: Path) -> str:
    return f'vitkit.train(vitkit.Datasets(...), resume="{folder}")'


def _preprocess_of(
    datasets: Datasets, data_survey: Survey, preprocess_before: Preprocess
) -> tuple[Preprocess, list[str]]:
    """Return the preprocessing that is saved with the model, and lines to print about it.

    Raises:
        VitkitError: the caller's preprocessing is invalid, or is for another image size than the model's.
    """
    if datasets.preprocess is not None:
        named = preprocess_of(datasets.preprocess, preprocess_before)
        return named, [f"files are preprocessed as you specified: {described(named.to_dict())}"]
    preprocess, notes = data_survey.preprocess_of(datasets, preprocess_before)
    if preprocess != preprocess_before and not preprocess.unknown:
        notes = [f"files are preprocessed like the datasets' transforms: {described(preprocess.to_dict())}", *notes]
    return preprocess, notes


@dataclass(frozen=True)
class _SeenImages:
    """The validation images that the weights have been trained on, in this run or before, directly or as copies.

    Attributes:
        roles: the role of each of these images in the training, or the role of its copy. The keys are the names of the
            images, which replace paths because the datasets have no files.
        doubt: the reason why the weights may have seen further images; empty if there is no such reason.
    """

    roles: dict[str, str]
    doubt: str


def _look_up(
    run: Run, classifier: Classifier, teacher: Teacher | None, data_survey: Survey
) -> tuple[bytes, _SeenImages]:
    """Find the images that the weights have seen.

    Return the record of these images after the run, in bytes, and the validation images among them.
    """
    before = ancestry_of(run.recipe, run.blueprint.pictures, None if teacher is None else teacher.pictures)
    facts, table = data_survey.facts(classifier.preprocess), data_survey.table
    overlap = find_overlap(before, table, facts)
    roles = exposures(table, find_twins(table, facts), overlap)
    labels = [table.name_of(i) for i in range(len(table))]
    record = before.merge(make_record(facts, labels, roles, is_whole=data_survey.is_certain))
    seen = seen_of({path: roles[i] for i, path in enumerate(table.paths) if table.splits[i] == "val"}, "val")
    doubt = _DOUBT if bool(before.seen) and not data_survey.is_certain else DOUBTS[overlap.looked_for]
    return record.to_bytes(), _SeenImages(seen, doubt_of(before) or doubt)


# If the weights come from a run, its pictures are recognised by their appearance.
_DOUBT = "it cannot be determined for tensors, or pictures that change, whether the weights had seen others"


def _data_of(run: Run, datasets: Datasets, classifier: Classifier) -> tuple[BatchedImages, HeadImages]:
    """Return the images of the datasets in two forms: in batches for training, and as data sets for fitting a head."""
    recipe, table = run.recipe, run.inputs.table
    labels = {name: table.of_split(name).labels for name in ("train", "val")}
    preprocess, val = classifier.preprocess, datasets.val if datasets.val is not None else []
    augment = augment_of(recipe, run.hooks.augment)
    augmented = TrainingOf(datasets.train, labels["train"], "train", preprocess, augment, recipe.seed)
    held_out = EvaluationOf(val, labels["val"], "val", preprocess)
    batches = BatchedImages(
        augmented,
        held_out,
        table,
        batch_size=recipe.batch_size,
        workers=choose_workers(recipe, preprocess.size),
        seed=recipe.seed,
        balanced=recipe.balance == "sampler",
        process=(run.team.rank, run.team.size),
    )
    plain = EvaluationOf(datasets.train, labels["train"], "train", preprocess)
    return batches, HeadImages(plain, held_out)


def _ask(classifier: Classifier, val: Images) -> Evaluation:
    batches = torch.utils.data.DataLoader(val, batch_size=64)
    parts: list[Tensor] = []
    with torch.inference_mode():
        for images, _ in batches:
            parts.append(classifier.probabilities(images).float().cpu())
            progress("evaluating", sum(map(len, parts)), len(val))
    return Evaluation(
        split="val",
        classes=classifier.classes,
        paths=tuple(val.paths),
        labels=np.array(val.labels),
        probabilities=torch.cat(parts).numpy(),
        temperature=classifier.temperature,
    )


def _write_report(run: Run, classifier: Classifier, evaluation: Evaluation, spoilt: str | None) -> None:
    best, is_mixed = classifier.provenance["metrics"]["epoch"], bool(run.recipe.mixup or run.recipe.cutmix)
    run.draw("Curves", plots.curves(run.metrics.rows, best, is_mixed=is_mixed))
    for caption, draw in pictures_of(evaluation, None).items():
        run.draw(caption, draw())
    write_report(
        run.folder / REPORT,
        title=f"{name_of(run.recipe)} on {NAME}",
        evaluation=evaluation,
        numbers=run.numbers,
        root=None,
        facts={
            "data": NAME,
            **by_name_in_words(classifier.provenance),
            "made with": ", ".join(f"{n} {v}" for n, v in classifier.provenance["versions"].items()),
        },
        findings=[
            *([f"problem: {spoilt}"] if spoilt else []),
            "the images came from datasets, not files, so wrong labels were not searched for",
        ],
        pictures=pictures_for_page(run),
        recipe=without_places(run.recipe).to_toml(),
    )
