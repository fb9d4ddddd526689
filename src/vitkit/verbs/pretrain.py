"""`vitkit.pretrain`: pre-train an encoder on images without labels, as a starting point for training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitkit.errors import VitkitError
from vitkit.system.progress import Progress, silent
from vitkit.system.run_files import METRICS, RECIPE, REPORT
from vitkit.text.arguments import check_arguments
from vitkit.training.pretraining import Pretraining
from vitkit.training.recipe import Recipe
from vitkit.training.request import NO_HOOKS, Hooks, with_data
from vitkit.verbs.inputs import check_data, path_of
from vitkit.verbs.result import Result, as_json

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from vitkit.classifier import Classifier


@dataclass(frozen=True, repr=False)
class PretrainingRun(Result):
    """A finished or interrupted pre-training run. Its files are read when an attribute is accessed.

        import vitkit

        run = vitkit.pretrain("photos", vitkit.Recipe(model="vit_micro_patch4_16", epochs=2), out="runs/pretrained")
        vitkit.train("labelled", vitkit.Recipe(weights=str(run.folder), method="full", epochs=2))

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
        return Recipe.load(self.folder / RECIPE)

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
            "recipe": as_json({name: value for name, value in self.recipe.to_dict().items() if value is not None}),
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
    recipe: str | Path | Recipe | None = None,
    *,
    pretraining: Pretraining = Pretraining(),
    out: Path | str | None = None,
    force: bool = False,
    resume: Path | str | None = None,
    data_root: Path | str | None = None,
    hooks: Hooks = NO_HOOKS,
    progress: Progress = silent,
) -> PretrainingRun:
    """Pre-train a model on images without their labels, as a starting point for train --weights RUN.

        import vitkit

        recipe = vitkit.Recipe(model="vit_micro_patch8_16", epochs=1, max_images=100)
        run = vitkit.pretrain("digits", recipe, pretraining=vitkit.Pretraining(mask=0.6))
        vitkit.train("digits", vitkit.Recipe(weights=str(run.folder), method="full", epochs=1, max_images=100))

    Images in class folders are split as for training, and the test images are not used. A training that starts from the
    encoder keeps this split. In a single folder, or with `unlabelled`, all images are used.

    On the command line: `vitkit pretrain digits --set model=vit_micro_patch4_16 --objective mae`.

    Args:
        data: a folder of images, a folder of class folders, a folder with train/ and val/, or a name such as digits.
        recipe: a TOML file with fields of a recipe that do not concern labels. A `vitkit.Recipe` is accepted, too.
        pretraining: what is learned.
        out: the run folder; by default the next free runs/NAME-OBJECTIVE-N.
        force: overwrite the run in `out`.
        resume: continue this interrupted run, with its settings.
        data_root: with `resume`, the folder that now contains the run's images, which may have been renamed.
        hooks: callbacks and loggers of your own.
        progress: called with the current task, the number of finished items and the total number of items.

    Returns:
        The run, whose folder contains the encoder.

    Raises:
        VitkitError: the data or the model cannot be used, `out` exists, or another process is working on it.
        Interrupted: a signal stopped the run; the folder contains the best model so far.
        OSError: the folder cannot be written.
    """
    if resume is not None:
        if (data, recipe, out, force) != (None, None, None, False) or pretraining.given:
            raise VitkitError(
                "verbs.option-conflict",
                "--resume takes everything from the run: leave out the data and the other flags",
            )
        from vitkit.training.pretraining import pretrain as run

        return PretrainingRun(run.resume_pretraining(resume, path_of(data_root), hooks=hooks))
    if data_root is not None:
        raise VitkitError(
            "verbs.option-missing", "--data-root says where the images of a run are now: it requires --resume"
        )
    requested = with_data(recipe, data)
    if requested.data is not None:
        check_data(requested.data)
    from vitkit.training.pretraining import pretrain as run

    return PretrainingRun(run.pretrain(requested, out, choices=pretraining, force=force, hooks=hooks))
