"""`vitkit.pretrain`: from pictures without labels to an encoder that training starts from."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from vitkit.errors import VitkitError
from vitkit.system.progress import Progress, Say, silent
from vitkit.system.run_files import METRICS, RECIPE, REPORT
from vitkit.text.arguments import check_arguments
from vitkit.training.pretraining.options import OtherDefaults, Pretraining, PretrainingFields
from vitkit.training.recipe import OF_LABELS, Recipe, build, overlay, unfold
from vitkit.training.recipe_files import load_fields
from vitkit.verbs.fields import add_recipe_fields
from vitkit.verbs.inputs import check_data, path_of, watchers
from vitkit.verbs.result import Result

if TYPE_CHECKING:
    from vitkit.classifier import Classifier


@dataclass(frozen=True, repr=False)
class PretrainingRun(Result):
    """A run that pre-training left, read from its folder when it is asked about.

    Attributes:
        folder: the run folder, which is also the model folder of the best encoder: what `weights` of `train` takes.
    """

    folder: Path

    @property
    def report(self) -> Path:
        """The page that tells of the run."""
        return self.folder / REPORT

    @cached_property
    def encoder(self) -> Classifier:
        """The encoder, a model without a head, with its preprocessing."""
        from vitkit.weights import load

        return load(self.folder)

    @cached_property
    def choices(self) -> Pretraining:
        """What was hidden, and what was to be said of it."""
        from vitkit.training.pretraining.pretrain import choices_of_run

        return choices_of_run(self.folder)

    @cached_property
    def recipe(self) -> Recipe:
        """What the run was trained by, with everything settled that was left open."""
        return build(load_fields(self.folder / RECIPE), str(self.folder / RECIPE))

    @cached_property
    def metrics(self) -> list[dict[str, float]]:
        """The rows of metrics.csv, an epoch each: losses, rate, seconds."""
        from vitkit.training.run_folder import read_metrics

        return read_metrics(self.folder / METRICS)

    @cached_property
    def kept(self) -> dict[str, float]:
        """The figures of the epoch whose weights were kept, `epoch` counted from 0."""
        return dict(self.encoder.provenance["metrics"])

    def to_dict(self) -> dict[str, Any]:
        """The places of the run, what it was trained by and its figures."""
        return {
            "folder": str(self.folder),
            "report": str(self.report),
            "pretraining": self.choices.to_dict(),
            "recipe": {name: value for name, value in dataclasses.asdict(self.recipe).items() if value is not None},
            "kept": self.kept,
        }

    def lines(self) -> list[str]:
        """What came of it, in a line."""
        which = "val_loss" if "val_loss" in self.kept else "train_loss"
        told = f"{which} {self.kept[which]:.4f} in epoch {self.kept['epoch'] + 1:.0f}"
        return [f"{self.choices.objective}: {told}; report: {self.report}"]


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
    """Pre-train a model on pictures without their labels; train --weights RUN goes on from it.

        import vitkit

        run = vitkit.pretrain("digits", epochs=2, max_images=300, decoder_layers=1)
        vitkit.train("digits", weights=str(run.folder), epochs=2, max_images=300)

    Pictures in class folders are split as `train` splits them, and learned from without labels; the test images are
    left alone, and `train` keeps that split. Pictures that lie in one folder, or `unlabelled`, are all learned from.

    On the command line: `vitkit pretrain digits --model vit_micro_patch4_16 --objective mae`.

    Args:
        data: folder of pictures, of class folders, of train/ and val/, or a name such as digits.
        recipe: TOML file of fields; what is named beside it goes before them.
        out: run folder; by default the next runs/NAME-OBJECTIVE-N.
        force: write over the run in `out`.
        resume: go on with this interrupted run; it takes everything else from there.
        data_root: with `resume`: the folder that holds the run's images now, under these or other names.
        callbacks: objects with some of on_fit_start, on_step_end, on_epoch_end, on_fit_end; each of these is given the
            training's state.
        loggers: objects with log_metrics(metrics, step), beside the one that `logger` names.
        say: takes each line of the story.
        progress: told what is being done, how many are done, of how many.
        fields: what is hidden and what is to be said of it, and of a recipe what is not about labels; see below.

    Returns:
        The run, whose folder holds the encoder.

    Raises:
        VitkitError: the data or the model cannot be pre-trained on, or `out` exists, or another process works on it.
        Interrupted: a signal stopped the run; the folder holds the best model so far.
        OSError: the folder cannot be written.
    """
    common = {**watchers(callbacks, loggers), "say": say}
    if resume is not None:
        if data is not None or recipe is not None or out is not None or force or fields:
            raise VitkitError("--resume takes everything from the run: leave out the data and the other flags")
        from vitkit.training.pretraining import pretrain as run

        return PretrainingRun(run.resume(resume, path_of(data_root), **common))
    if data_root is not None:
        raise VitkitError("--data-root says where the images of a run are now: it goes with --resume")
    chosen: dict[str, Any] = {**fields} if data is None else {**fields, "data": str(data)}
    if recipe is not None:
        chosen = overlay(load_fields(recipe), unfold(chosen))
    if chosen.get("data") is not None:
        check_data(chosen["data"])
    from vitkit.training.pretraining import pretrain as run

    return PretrainingRun(run.pretrain(chosen, out, force=force, **common))


add_recipe_fields(pretrain, ("data", *OF_LABELS), (Pretraining, OtherDefaults, Recipe), "Fields")
