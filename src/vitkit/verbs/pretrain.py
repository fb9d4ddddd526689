"""`vitkit.pretrain`: pre-train an encoder on images without labels, as a starting point for training."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from vitkit.errors import VitkitError
from vitkit.system.progress import Progress, Say, silent
from vitkit.system.run_files import METRICS, RECIPE, REPORT
from vitkit.text.arguments import check_arguments
from vitkit.training.pretraining import OtherDefaults, Pretraining, PretrainingFields, split_fields
from vitkit.training.recipe import OF_LABELS, Recipe, build, overlay, unfold
from vitkit.training.request import add_recipe_fields, load_fields
from vitkit.verbs.inputs import callbacks_and_loggers, check_data, path_of
from vitkit.verbs.result import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from vitkit.classifier import Classifier


@dataclass(frozen=True, repr=False)
class PretrainingRun(Result):
    """A finished or interrupted pre-training run. Its files are read when an attribute is accessed.

        import vitkit

        run = vitkit.pretrain("photos", model="vit_micro_patch4_16", epochs=2, out="runs/pretrained")
        vitkit.train("labelled", weights=str(run.folder), method="full", epochs=2)

    Attributes:
        folder: the run folder, which is also the model folder of the best encoder. `train` accepts it as `weights`.
    """

    folder: Path

    @property
    def report(self) -> Path:
        """The path of the HTML report."""
        return self.folder / REPORT

    @cached_property
    def encoder(self) -> Classifier:
        """The encoder, a model without a head, with its preprocessing."""
        from vitkit.weights import load

        return load(self.folder)

    @cached_property
    def choices(self) -> Pretraining:
        """The options of the pre-training, such as the objective, the fraction of masked patches, and the target."""
        from vitkit.training.pretraining.pretrain import choices_of_run

        return choices_of_run(self.folder)

    @cached_property
    def recipe(self) -> Recipe:
        """The recipe of the run, in which every unset field has the default that was chosen for it."""
        return build(load_fields(self.folder / RECIPE), str(self.folder / RECIPE))

    @cached_property
    def metrics(self) -> list[dict[str, float]]:
        """The rows of metrics.csv, one for each epoch: losses, learning rate, seconds."""
        from vitkit.training.run_folder import read_metrics

        return read_metrics(self.folder / METRICS)

    @cached_property
    def kept(self) -> dict[str, float]:
        """The figures of the epoch whose weights were kept; `epoch` counts from 0."""
        return dict(self.encoder.provenance["metrics"])

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of metrics.csv, one for each epoch."""
        return [dict(row) for row in self.metrics]

    def pictures(self) -> dict[str, Callable[[], Figure]]:
        """Return the function that draws the losses, with its caption as the key."""

        def losses() -> Figure:
            from vitkit.training.pretraining.pretrain import draw_losses

            return draw_losses(self.metrics, int(self.kept["epoch"]))

        return {"Loss by epoch": losses}

    def to_dict(self) -> dict[str, Any]:
        """Return the paths of the run, its options, its recipe and its figures."""
        return {
            "folder": str(self.folder),
            "report": str(self.report),
            "pretraining": self.choices.to_dict(),
            "recipe": {name: value for name, value in dataclasses.asdict(self.recipe).items() if value is not None},
            "kept": self.kept,
        }

    def lines(self) -> list[str]:
        """Return one line with the loss and the report."""
        which = "val_loss" if "val_loss" in self.kept else "train_loss"
        outcome = f"{which} {self.kept[which]:.4f} in epoch {self.kept['epoch'] + 1:.0f}"
        return [f"{self.choices.objective}: {outcome}; report: {self.report}"]


@check_arguments
def pretrain(
    data: str | Path | None = None,
    *,
    recipe: str | Path | None = None,
    out: Path | str | None = None,
    force: bool = False,
    resume: Path | str | None = None,
    data_root: Path | str | None = None,
    callbacks: Sequence[Any] = (),
    loggers: Sequence[Any] = (),
    say: Say = print,
    progress: Progress = silent,
    **fields: Unpack[PretrainingFields],
) -> PretrainingRun:
    """Pre-train a model on images without their labels, as a starting point for train --weights RUN.

        import vitkit

        run = vitkit.pretrain("digits", model="vit_micro_patch8_16", epochs=1, max_images=100, decoder_layers=1)
        vitkit.train("digits", weights=str(run.folder), method="full", epochs=1, max_images=100)

    Images in class folders are split as for training, and the test images are not used. A training that starts from the
    encoder keeps this split. In a single folder, or with `unlabelled`, all images are used.

    On the command line: `vitkit pretrain digits --model vit_micro_patch4_16 --objective mae`.

    Args:
        data: a folder of images, a folder of class folders, a folder with train/ and val/, or a name such as digits.
        recipe: a TOML file with fields; other flags take precedence over it.
        out: the run folder; by default the next free runs/NAME-OBJECTIVE-N.
        force: overwrite the run in `out`.
        resume: continue this interrupted run, with its settings.
        data_root: with `resume`, the folder that now contains the run's images, which may have been renamed.
        callbacks: objects with some of the methods on_fit_start, on_step_end, on_epoch_end and on_fit_end. Each is
            called with the state of the training.
        loggers: objects with a method log_metrics(metrics, step), in addition to `logger`.
        say: called with each line of the run's log.
        progress: called with the current task, the number of finished items and the total number of items.
        fields: the options of the pre-training, and the fields of a recipe that do not concern labels; see below.

    Returns:
        The run, whose folder contains the encoder.

    Raises:
        VitkitError: the data or the model cannot be used, `out` exists, or another process is working on it.
        Interrupted: a signal stopped the run; the folder contains the best model so far.
        OSError: the folder cannot be written.
    """
    common = {**callbacks_and_loggers(callbacks, loggers), "say": say}
    if resume is not None:
        if data is not None or recipe is not None or out is not None or force or fields:
            raise VitkitError("--resume takes everything from the run: leave out the data and the other flags")
        from vitkit.training.pretraining import pretrain as run

        return PretrainingRun(run.resume_pretraining(resume, path_of(data_root), **common))
    if data_root is not None:
        raise VitkitError("--data-root says where the images of a run are now: it requires --resume")
    chosen: dict[str, Any] = {**fields} if data is None else {**fields, "data": str(data)}
    if recipe is not None:
        chosen = overlay(load_fields(recipe), unfold(chosen))
    if chosen.get("data") is not None:
        check_data(chosen["data"])
    _, of_recipe = split_fields(unfold(chosen))
    build({name: value for name, value in of_recipe.items() if name != "weights"}, None)  # before importing torch
    from vitkit.training.pretraining import pretrain as run

    return PretrainingRun(run.pretrain(chosen, out, force=force, **common))


add_recipe_fields(pretrain, ("data", *OF_LABELS), (Pretraining, OtherDefaults, Recipe), "Fields")
