"""A pre-training from beginning to end: the pictures, their split, the network, the page.

Its folder is a run folder, and the model folder of the encoder, without a head. Pictures with labels are split as
`vitkit train` splits them, and only the training images are learned from: a model fine-tuned from the encoder keeps
that split, so that no test image of it was ever seen (docs/decisions/0024-pre-training.md).
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import tomli_w

import vitkit
from vitkit.data.doctor.examine import examine
from vitkit.data.preprocess import Preprocess
from vitkit.data.sources import read_source
from vitkit.data.splits import check_trainable
from vitkit.data.table import ImageTable
from vitkit.data.unlabelled import has_no_folders, read_unlabelled
from vitkit.errors import VitkitError
from vitkit.system.files import write_text
from vitkit.system.progress import Progress, Say, silent
from vitkit.system.run_files import PRETRAINING, RECIPE
from vitkit.training.architecture import weights_of
from vitkit.training.distributed import Team, assemble, check_team, describe_team
from vitkit.training.effects import check_effects
from vitkit.training.lineage import Images as RunImages
from vitkit.training.lineage import ancestry_of, divide, of_ancestry
from vitkit.training.loggers import check_watchers
from vitkit.training.pretraining.choices import KINDS, OF_LABELS, Pretraining, parted
from vitkit.training.pretraining.fit import fit_and_report
from vitkit.training.pretraining.setup import check_encoder, network_of
from vitkit.training.recipe import Recipe, build
from vitkit.training.recipe_files import load_of_run
from vitkit.training.recipe_model import overlay, unfold
from vitkit.training.recipe_names import name_of
from vitkit.training.run import taken_up, tell, write_start
from vitkit.training.run_folder import (
    Run,
    check_place,
    clear,
    discard_if_empty,
    going_on,
    hold_given,
    hold_next,
)
from vitkit.training.settling import limit
from vitkit.training.setup import choose_device, start_of
from vitkit.weights.read import reading_once

DEFAULT_MODEL = "vit_tiny_patch16_224"
_UNLABELLED_SPLIT = (0.95, 0.05, 0.0)  # nothing is tested


def pretrain(
    fields: dict[str, Any],
    out: str | Path | None = None,
    *,
    force: bool = False,
    callbacks: Sequence[Any] = (),
    loggers: Sequence[Any] = (),
    say: Say = print,
    progress: Progress = silent,
) -> Path:
    """Pre-train an encoder, and leave a run folder.

    Args:
        fields: of `Pretraining`, and of a recipe but for what is about labels; `data` must be there.
        out: the run folder; by default the next free `runs/NAME-N`.
        force: write over the run that is in `out`.
        callbacks: objects with some of `loop.HOOKS`.
        loggers: objects such as `loggers.Logger`, beside the recipe's.
        say: takes each line of the story.
        progress: told what is being done, how many are done, of how many.

    Raises:
        VitkitError: the data or the model cannot be pre-trained on, or `out` exists, or another process works on it.
        Interrupted: a signal stopped the run; the folder holds the best model so far.
        OSError: the folder cannot be written.
    """
    choices, recipe = settle_fields(fields)
    check_watchers(recipe, callbacks, loggers)
    team = assemble(recipe.devices, recipe.nodes, choose_device(recipe))
    with ExitStack() as hold, reading_once():
        folder, recipe, choices = team.by_first(
            lambda: _prepare(choices, recipe, "split" in fields, out, force, team, say, progress, hold)
        )
        run = Run(folder, say, progress, team=team, callbacks=tuple(callbacks), loggers=tuple(loggers))
        _go(run, recipe, choices)
    return folder


def settle_fields(fields: dict[str, Any]) -> tuple[Pretraining, Recipe]:
    """What is asked for, with everything settled that the objective decides.

    Raises:
        VitkitError: a field is unknown, out of range, or about labels; or there is no data.
    """
    own, rest = parted(unfold(fields))
    if rest.get("data") is None:
        raise VitkitError("no data: name a folder of pictures, or digits")
    if of_labels := [name for name in OF_LABELS if name in rest]:
        raise VitkitError(f"{of_labels[0]} is about learning labels, and pre-training learns without: leave it out")
    choices = Pretraining(**own).settled()
    weights = rest.get("weights", "none")
    if weights == "none" and rest.get("model") is None:
        rest["model"] = DEFAULT_MODEL
    settled = {"weights": weights, "method": "scratch" if weights == "none" else "full", "balance": "none"}
    recipe = build({**overlay(KINDS[choices.objective].recipe, rest), **settled}, "flags")
    check_effects(recipe, rest, named=rest)
    return choices, recipe


def _read(choices: Pretraining, recipe: Recipe, progress: Progress) -> ImageTable:
    assert recipe.data is not None
    if choices.unlabelled or has_no_folders(recipe.data):
        return read_unlabelled(recipe.data, progress)
    try:
        table = read_source(recipe.data, progress, recipe.layout)
        check_trainable(table)
    except VitkitError as error:
        if not Path(recipe.data).is_dir():
            raise
        raise VitkitError(f"{error}; or take every picture below it with --unlabelled") from error
    return table


def _prepare(
    choices: Pretraining,
    recipe: Recipe,
    is_split_given: bool,
    out: str | Path | None,
    force: bool,
    team: Team,
    say: Say,
    progress: Progress,
    hold: ExitStack,
) -> tuple[Path, Recipe, Pretraining]:
    """Write down everything that the pre-training starts from, in a folder that is held from then on."""
    table = _read(choices, recipe, progress)
    is_unlabelled = len(table.classes) == 1
    if is_unlabelled and not is_split_given:
        recipe = recipe.replace(split=_UNLABELLED_SPLIT)
    check_team(recipe, team)
    check_place(out, table, None, weights_of(recipe))
    if out is not None:
        hold_given(out, hold, force=force)
    diagnosis = examine(table, _pixels_of(recipe, choices, progress), progress)
    before = ancestry_of(recipe, None, progress)
    own = divide(RunImages.of(diagnosis), recipe, before, progress)
    if recipe.max_images is not None:
        own = limit(own, recipe.max_images, recipe.seed)
    run = Run(
        Path(out) if out is not None else hold_next(f"{table.root.name}-{choices.objective}", hold), say, progress
    )
    try:
        clear(run.folder)
        run.say(f"vitkit {vitkit.__version__}: pre-training {name_of(recipe)} on {table.root} ({choices.objective})")
        for line in [*filter(None, [table.layout]), *describe_team(recipe, team)]:
            run.say(line)
        found = tell(run, [*of_ancestry(own, recipe), *own.findings, *diagnosis.findings])
        write_text(run.folder / PRETRAINING, tomli_w.dumps(choices.to_dict()))
        write_start(run.folder, recipe, own, before, found, has_labels=False)
    except BaseException:
        discard_if_empty(run.folder)
        raise
    return run.folder, recipe, choices


def _pixels_of(recipe: Recipe, choices: Pretraining, progress: Progress) -> Preprocess:
    """As the encoder reads them; what cannot be built fails here, before the images are read."""
    import torch

    from vitkit.model.vit import VisionTransformer

    config, preprocess = start_of(recipe, (), progress)
    vit = check_encoder(config, choices)
    with torch.device("meta"), torch.random.fork_rng():
        network_of(VisionTransformer(vit), preprocess, choices, recipe.seed)
    return preprocess


def _go(run: Run, recipe: Recipe, choices: Pretraining) -> None:
    with going_on(run, f"vitkit pretrain --resume {run.folder}"):
        fit_and_report(run, recipe, choices)


def resume(
    folder: str | Path,
    data_root: Path | None = None,
    *,
    callbacks: Sequence[Any] = (),
    loggers: Sequence[Any] = (),
    say: Say = print,
    progress: Progress = silent,
) -> Path:
    """Go on with a pre-training that was interrupted, to the weights it would have had.

    Args:
        folder: the run.
        data_root: the folder that holds its images now; None: where they were.
        callbacks: objects with some of `loop.HOOKS`.
        loggers: objects such as `loggers.Logger`, beside the recipe's.
        say: takes each line of the story.
        progress: told what is being done, how many are done, of how many.

    Raises:
        VitkitError: the folder holds no pre-training, or another process works on it.
    """
    folder = Path(folder)
    choices = choices_of_run(folder)
    recipe = load_of_run(folder / RECIPE)
    with taken_up(folder, recipe, data_root, callbacks, loggers, say, progress) as run:
        _go(run, recipe, choices)
    return folder


def choices_of_run(folder: Path) -> Pretraining:
    """What a run learns.

    Raises:
        VitkitError: the folder holds no pre-training, or its file is damaged.
    """
    file = folder / PRETRAINING
    if not file.is_file():
        hint = f": vitkit train --resume {folder}" if (folder / RECIPE).is_file() else ""
        raise VitkitError(f"{folder} is no pre-training of vitkit's: it has no {PRETRAINING}{hint}")
    try:
        return Pretraining(**tomllib.loads(file.read_text(encoding="utf-8")))
    except (TypeError, ValueError) as error:
        raise VitkitError(f"{file} is damaged: {error}") from error
