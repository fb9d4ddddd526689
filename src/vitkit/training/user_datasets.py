"""Train on datasets of the caller: Python objects that return (image, label) by index.

As they have no files, no files are checked and no images are split. All items are read once before the training to get
the labels. Validation images that are also training images are excluded from the figures.
"""

from __future__ import annotations

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
from vitkit.data.seen import find_overlap, make_record, roles_after_training
from vitkit.data.splits import check_trainable
from vitkit.data.user_datasets import NAME, Datasets, EvaluationDataset, Survey, TrainingDataset, survey
from vitkit.errors import VitkitError
from vitkit.evaluation.figures import (
    DOUBTS,
    all_figures,
    chosen_on,
    counted_part,
    describe,
    seen_to_exclude,
    unrecorded_reason,
    zero_shot_in_words,
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
from vitkit.training.recipe import Recipe, name_of, without_absolute_paths
from vitkit.training.request import NO_HOOKS, Hooks, load_run_recipe
from vitkit.training.run import Stages, carry_out, continue_run
from vitkit.training.run_folder import Run, check_output_folder
from vitkit.training.stages.fit import begin_model, draw_classes, train_model
from vitkit.training.stages.report import pictures_for_page
from vitkit.training.stages.write import introduce, started_run_folder
from vitkit.training.start import augment_of, choose_device, choose_workers, resolve_model
from vitkit.training.teacher import Teacher
from vitkit.weights.preprocessing import preprocess_of

FILE_FIELDS = (  # of a recipe
    *("data", "layout", "follow_links", "labels", "split", "split_from", "group_by", "folds", "max_images"),
    *("split_seed", "cache"),
)


def train_on(
    datasets: Datasets, requested: Recipe, out: str | Path | None, *, force: bool = False, hooks: Hooks = NO_HOOKS
) -> Path:
    """Train on the user's datasets, and return the run folder, by default the next free `runs/datasets-N`.

    Raises:
        VitkitError: the datasets cannot be trained on, or a field of the recipe only applies to files.
    """
    for name in FILE_FIELDS:
        if name in requested.given and getattr(requested, name) not in (None, False):
            message = f"{name} applies to files, and a data set in memory has none: leave it out"
            raise VitkitError("training.field-refused", message)
    is_from_scratch = requested.weights == "none" or requested.method == "scratch"
    defaults = Recipe(method="scratch" if is_from_scratch else "full", lp_ft=False, cache="none")
    run = Run(defaults.updated(requested), None if out is None else Path(out), hooks=hooks)
    return carry_out(run, _DatasetRun(datasets).stages, force=force)


def resume_on(datasets: Datasets, folder: Path, hooks: Hooks = NO_HOOKS) -> Path:
    """Continue a run on the user's datasets, with the recipe in its folder.

    Raises:
        VitkitError: the folder contains no run on datasets, or the datasets differ from those of the run.
    """
    check_run_folder(folder)
    recipe = load_run_recipe(folder / RECIPE)
    if recipe.data is not None:
        message = f"{folder} was trained on files, in {recipe.data}: leave out the data set in memory"
        raise VitkitError("training.run-kind", message)
    return continue_run(Run(recipe, hooks=hooks), folder, _DatasetRun(datasets).stages)


@dataclass
class _DatasetRun:
    """The stages of a run on the caller's datasets."""

    datasets: Datasets
    preprocess: Preprocess | None = None  # of files, as it is saved with the model; None in a resumed run

    @property
    def stages(self) -> Stages:
        resume_command = 'vitkit.train(vitkit.Datasets(...), resume="{}")'
        return Stages((self.open, self.write), self.fit, (self.conclude,), resume_command.format, read_inputs=None)

    @cached_property
    def survey(self) -> Survey:
        return survey(self.datasets)

    def open(self, run: Run) -> None:
        requested = run.request
        check_output_folder(run.out, None, requested.teacher, weights_of(requested))
        table = run.source = self.survey.table
        check_trainable(table)
        recipe, reasons = complete(requested, table)
        reasons += check_effects(recipe, requested)
        check_team(recipe, run.team)
        run.blueprint, model_reasons = resolve_model(recipe, requested.set_fields(), table)
        self.survey.check(run.blueprint.preprocess)
        run.recipe = run.blueprint.recipe
        run.reasons = [*reasons, *model_reasons]

        self.preprocess = run.blueprint.preprocess
        evaluated = "val" if "val" in table.splits else "train"
        if self.datasets.preprocess is not None:
            self.preprocess = preprocess_of(self.datasets.preprocess, self.preprocess)
            run.reasons.append(f"files are preprocessed as you specified: {described(self.preprocess.to_dict())}")
        elif any(split == evaluated for split, _ in self.survey.shapes):
            self.preprocess = replace(self.preprocess, unknown="it was trained on tensors")
            run.reasons.append("note: the model cannot read files: state how the tensors were made with preprocess=")

        if run.out is not None and run.reserve is not None:
            run.reserve(run.out)

    def write(self, run: Run) -> None:
        assert self.preprocess is not None
        with started_run_folder(run, "datasets"):
            write_json(run.folder / PREPROCESS, self.preprocess.to_dict())
            write_json(run.folder / CLASS_INDICES, dict(enumerate(run.source.classes)))
            write_text(run.folder / RECIPE, run.recipe.to_toml())
            introduce(run, f"training {name_of(run.recipe)} on {NAME}")
            shared = self.survey.shared
            if shared:
                run.say(f"problem: {shared} validation images are training images too and are not counted")

    def fit(self, run: Run) -> None:
        recipe, table, datasets, team = run.recipe, self.survey.table, self.datasets, run.team
        run.inputs = Inputs(table, self.survey.digest, self.survey.contents, {})
        classifier, teacher = begin_model(run)
        preprocess = self.preprocess or Preprocess.from_dict(read_json(run.folder / PREPROCESS))
        classifier.preprocess = preprocess
        find_seen = partial(_seen_images, run, classifier, teacher, self.survey)
        classifier.pictures, self.seen, self.doubt = team.broadcast_from_main(find_seen)
        labels = {name: table.of_split(name).labels for name in ("train", "val")}
        augment = augment_of(recipe, run.hooks.augment)
        self.val = EvaluationDataset(datasets.val if datasets.val is not None else [], labels["val"], "val", preprocess)
        data = BatchedImages(
            TrainingDataset(datasets.train, labels["train"], "train", preprocess, augment, recipe.seed),
            self.val,
            table,
            batch_size=recipe.batch_size,
            workers=choose_workers(recipe, preprocess.size),
            seed=recipe.seed,
            balanced=recipe.balance == "sampler",
            process=(team.rank, team.size),
        )
        head_images = HeadImages(EvaluationDataset(datasets.train, labels["train"], "train", preprocess), self.val)
        if team.is_main:
            draw_classes(run)
        counts = ", ".join(f"{len(numbers)} {name}" for name, numbers in labels.items())
        run.say(f"{len(table.classes)} classes; images: {counts}")
        run.classifier = train_model(run, classifier, teacher, data, head_images)

    def conclude(self, run: Run) -> None:
        """Calibrate the model, and evaluate it on the validation images if there are any."""
        val, chosen = self.val, chosen_on("val", run.recipe.to_dict())
        if not len(val):
            state, predictions = "not calibrated", run.out_of_fold
            if predictions is not None:
                evaluate = partial(predictions.evaluation, run.classifier)
                calibrate_on(run.classifier, evaluate, ValidationFacts(chosen, folds=predictions.folds))
                run.classifier.save(run.folder)
                state = "calibrated by cross-validation of the training images"
            run.say(f"no validation images: the confidences are {state}, and there are no figures")
            return
        classifier = run.classifier.use(images=len(val), device=choose_device(run.recipe))
        before = correction_of(classifier)
        calibrate_on(classifier, lambda: _evaluate(classifier, val), ValidationFacts(chosen, seen=self.seen))
        classifier.save(run.folder)
        if correction_of(classifier) != before:  # the head has changed, and a backend has a copy of the old one
            classifier = classifier.use(images=len(val), device=choose_device(run.recipe))
        evaluation = replace(_evaluate(classifier, val), chosen=chosen)
        run.numbers = all_figures(evaluation, self.seen, classifier.provenance, classifier.computation, self.doubt)
        write_json(run.folder / EVALUATION, run.numbers)
        caveat = describe(run.numbers)
        if caveat is not None:
            run.say(f"note: {caveat}")
        _write_report(run, classifier, counted_part(evaluation, run.numbers), caveat)
        loss = "" if run.numbers["loss"] is None else f" ({run.numbers['loss']:.4f} log loss)"
        run.say(f"{headline_of(run.numbers).words}{loss}")


def _seen_images(
    run: Run, classifier: Classifier, teacher: Teacher | None, data_survey: Survey
) -> tuple[bytes, dict[str, str], str]:
    """Determine which images the weights have seen, directly or as copies.

    Return the record of the images that they have seen after this run, the roles of the validation images that they had
    seen before it, by path, and the reason why they may have seen further images (empty if there is none).
    """
    before = ancestry_of(run.recipe, run.blueprint.record_bytes, None if teacher is None else teacher.pictures)
    table = data_survey.table
    facts = data_survey.facts(classifier.preprocess)
    overlap = find_overlap(before, table, facts)
    roles = roles_after_training(table, find_twins(table, facts), overlap)
    labels = [table.name_of(i) for i in range(len(table))]
    record = before.merge(make_record(facts, labels, roles, is_whole=data_survey.is_certain))
    rows = zip(table.paths, table.splits, roles, strict=True)
    seen = seen_to_exclude({path: role for path, split, role in rows if split == "val"}, "val")
    doubt = DOUBTS[overlap.looked_for]
    if before.seen and not data_survey.is_certain:  # pictures of a run are recognised by their appearance
        doubt = "it cannot be determined for tensors, or pictures that change, whether the weights had seen others"
    return record.to_bytes(), seen, unrecorded_reason(before) or doubt


def _evaluate(classifier: Classifier, val: Images) -> Evaluation:
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


def _write_report(run: Run, classifier: Classifier, evaluation: Evaluation, caveat: str | None) -> None:
    best = classifier.provenance["metrics"]["epoch"]
    is_mixed = bool(run.recipe.mixup or run.recipe.cutmix)
    run.draw("Curves", plots.curves(run.metrics.rows, best, is_mixed=is_mixed))
    for caption, draw in pictures_of(evaluation).items():
        run.draw(caption, draw())
    write_report(
        run.folder / REPORT,
        title=f"{name_of(run.recipe)} on {NAME}",
        evaluation=evaluation,
        numbers=run.numbers,
        root=None,
        facts={
            "data": NAME,
            **zero_shot_in_words(classifier.provenance),
            "made with": ", ".join(f"{name} {number}" for name, number in classifier.provenance["versions"].items()),
        },
        findings=[
            *([f"problem: {caveat}"] if caveat else []),
            "the images came from datasets, not files, so wrong labels were not searched for",
        ],
        pictures=pictures_for_page(run),
        recipe=without_absolute_paths(run.recipe).to_toml(),
    )
