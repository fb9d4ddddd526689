"""A pre-training from beginning to end: the pictures, their split, the network, the page.

Its folder is a run folder, and the model folder of the encoder, without a head. Pictures with labels are split as
`vitkit train` splits them, and only the training images are learned from: a model fine-tuned from the encoder keeps
that split, so that no test image of it was ever seen (docs/decisions/0024-pre-training.md).

From what is asked for to what is trained: an encoder, and the task that teaches it.

Pre-training as the loop takes it: an objective without labels, and images that bring a key in their place.

From the folder of a pre-training, where everything is settled, to the best encoder and its page.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import tomli_w
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

import vitkit
from vitkit.classifier import Classifier
from vitkit.data.augment import mix_seeds
from vitkit.data.doctor.examine import examine
from vitkit.data.loading import BatchedImages, EvaluationImages, Images
from vitkit.data.preprocess import Preprocess
from vitkit.data.sources import has_no_folders, read_source, read_unlabelled
from vitkit.data.split_file import images_of_run, read_contents
from vitkit.data.splits import SPLITS, check_trainable
from vitkit.data.table import ImageTable
from vitkit.errors import VitkitError
from vitkit.model.build import vit_of
from vitkit.model.config import ViTConfig
from vitkit.model.network_config import Config
from vitkit.model.vit import Attention, VisionTransformer
from vitkit.model_folder import RECORD
from vitkit.reporting.pretraining_report import Strip, write_pretraining_report
from vitkit.system.files import from_json, without_place, write_text
from vitkit.system.progress import Say
from vitkit.system.run_files import FILLER, FINDINGS, METRICS, PRETRAINING, RECIPE, REPORT, SPLIT
from vitkit.training.adapters import needs_every_patch
from vitkit.training.architecture import weights_of
from vitkit.training.checkpoint import identity
from vitkit.training.defaults import check_effects
from vitkit.training.distributed import ProcessGroup, check_team, describe_team
from vitkit.training.fine_tune import begin, data_of, run_training
from vitkit.training.lineage import RunImages, ancestry_findings, ancestry_of, divide
from vitkit.training.pretraining.mae import MaskedAutoencoding
from vitkit.training.pretraining.masked_patch import MaskedPatchPrediction
from vitkit.training.pretraining.network import SelfSupervised, patchify, unpatchify
from vitkit.training.pretraining.options import KINDS, Pretraining, parted
from vitkit.training.recipe import OF_LABELS, Recipe, build, name_of, overlay, unfold, without_places
from vitkit.training.recipe_files import load_of_run
from vitkit.training.run import Prepared, Work, drive, drive_again, tell, write_start
from vitkit.training.run_folder import (
    Observers,
    Run,
    check_place,
    clear,
    discard_if_empty,
    new_run_folder,
    read_metrics,
    reporting,
    reserve_folder,
)
from vitkit.training.stability import Outcome
from vitkit.training.start import Blueprint, blueprint_of, limit, new_classifier
from vitkit.weights import load


def check_encoder(config: Config, choices: Pretraining) -> ViTConfig:
    """The configuration, of a model that can learn so.

    Raises:
        VitkitError: what is hidden could be seen, or a part of the model would not be trained.
    """
    asked = f"--objective {choices.objective}"
    if not isinstance(config, ViTConfig):
        raise VitkitError(f"{asked}: {config.full_name} has no patches to hide; take a Vision Transformer")
    if config.stem is not None:
        raise VitkitError(
            f"{asked}: the stem of a hybrid sees beyond each patch, so nothing is hidden: take a plain ViT"
        )
    if config.distill_token or config.distill_head:
        raise VitkitError(f"{asked}: nothing teaches the distillation token; pre-train the model without it")
    if config.representation_size is not None:
        raise VitkitError(f"{asked}: nothing teaches the representation layer; leave out _in21k, or has_logits")
    if config.fc_norm:
        raise VitkitError(f"{asked}: this model normalises its pooled features alone (fc_norm), and patches are needed")
    if choices.objective == "mae" and (why := needs_every_patch(config)) is not None:
        raise VitkitError(f"{asked}: {why}; take --objective masked-patch")
    return config


def new_encoder(blueprint: Blueprint, choices: Pretraining, table: ImageTable, data_hash: str) -> Classifier:
    """A model without a head, before its pre-training; the same for the same seed."""
    encoder = new_classifier(blueprint, replace(table, classes=(), sets=()), data_hash)
    encoder.provenance["pretraining"] = choices.to_dict()
    return encoder


def network_of(encoder: VisionTransformer, preprocess: Preprocess, choices: Pretraining, seed: int) -> SelfSupervised:
    """What is trained, the same for the same seed.

    Raises:
        VitkitError: there are too few patches, or they cannot be divided.
    """
    torch.manual_seed(mix_seeds(seed, 1))
    if choices.objective == "mae":
        return SelfSupervised(encoder, MaskedAutoencoding(encoder.config, choices))
    return SelfSupervised(encoder, MaskedPatchPrediction(encoder.config, choices, preprocess))


def use_fused_attention(network: SelfSupervised, *, fused: bool) -> None:
    """One kernel for attention in the encoder and in the decoder, or attention written out."""
    for module in network.modules():
        if isinstance(module, Attention):
            module.fused = fused


T = TypeVar("T")
_OF_TRAINING, _OF_VALIDATION = 1, 2  # so that no key is drawn twice


@dataclass(frozen=True)
class Filling:
    """To fill in what is hidden of each image; what is hidden, the image's key decides.

    Attributes:
        has_hits: whether there is a right and a wrong.
    """

    has_hits: bool

    takes_labels = True  # nothing is mixed

    def to(self, device: torch.device) -> Filling:  # nothing lies anywhere
        """The same."""
        return self

    def targets(self, labels: Tensor) -> Tensor:
        """Keys cannot be mixed."""
        raise NotImplementedError

    def ask(self, network: Callable[..., T], images: Tensor, labels: Tensor) -> T:
        """The figures of some images, (B,) each, or side by side; `labels` are their keys."""
        return network(images, labels)

    def loss(self, heads: Sequence[Tensor], images: Tensor, targets: Tensor) -> Tensor:
        """The mean loss of some images, ()."""
        return heads[0].mean()

    def hits(self, heads: Sequence[Tensor], targets: Tensor) -> Tensor:
        """How much of what was hidden of each image is right, (B,); (0,) where nothing can be."""
        return heads[1].detach() if self.has_hits else heads[0].new_zeros(0)

    def judge(self, answers: Tensor, labels: Tensor) -> tuple[dict[str, float], Outcome | None]:
        """The means of the figures of the validation images; of a collapse nothing tells."""
        means = answers.double().mean(dim=0).tolist()
        return dict(zip(("val_loss", "val_acc"), means, strict=False)), None


class KeyedImages(Images):
    """Images with a key in the place of the label: a function of the seed and of what is asked for.

    A training image has another key in every epoch, a validation image always the same.

    Args:
        images: whose pixels these are.
        seed: of the run.
        kind: keeps the keys of training and validation apart.
    """

    def __init__(self, images: Images, seed: int, kind: int) -> None:
        self.images, self.seed, self.kind = images, seed, kind

    @property
    def labels(self) -> Sequence[int]:
        """Of the images; nothing reads them."""
        return self.images.labels

    @property
    def paths(self) -> Sequence[str]:
        """Of the images."""
        return self.images.paths

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, key: int | tuple[int, ...]) -> tuple[Tensor, int]:
        places = key if isinstance(key, tuple) else (key,)
        return self.images[key][0], mask_key(self.seed, self.kind, *places)


def mask_key(*seeds: int) -> int:
    """A key that fits into 32 bits."""
    return mix_seeds(*seeds) % 2**32 - 2**31


def with_keys(data: BatchedImages, seed: int) -> BatchedImages:
    """The same data, whose images bring keys."""
    data.train, data.val = KeyedImages(data.train, seed, _OF_TRAINING), KeyedImages(data.val, seed, _OF_VALIDATION)
    return data


def keys_of_validation(seed: int, images: Sequence[int]) -> Tensor:
    """The keys of these validation images, (n,)."""
    return torch.tensor([mask_key(seed, _OF_VALIDATION, i) for i in images])


_SHOWN = 8  # pictures of the page


def fit_and_report(run: Run, recipe: Recipe, choices: Pretraining, blueprint: Blueprint | None = None) -> None:
    """Everything after the data is settled; what it reads is what a resumed run reads."""
    table = images_of_run(run.folder / SPLIT)
    data_hash = from_json((run.folder / SPLIT).read_text(encoding="utf-8"))["hash"]
    model = run.team.main_first(lambda: blueprint or blueprint_of(recipe, ()))
    classifier = run.team.main_first(lambda: new_encoder(model, choices, table, data_hash))
    record = run.folder / RECORD
    classifier.pictures = record.read_bytes() if record.is_file() else None
    run.say(f"images, without their labels: {_counted(table)}")
    network = network_of(vit_of(classifier.model, "pre-training"), classifier.preprocess, choices, recipe.seed)
    data = data_of(recipe, table, classifier, run.team)
    fabric = begin(run, recipe, classifier, data)
    use_fused_attention(network, fused=fabric.device.type == "cuda")
    own = {**identity(recipe, table, read_contents(run.folder / SPLIT)), **choices.to_dict()}
    objective = Filling(has_hits=bool(network.task.has_hits))
    run_training(run, recipe, with_keys(data, recipe.seed), classifier, objective, fabric, 0.0, own, network)
    with reporting(run):
        run.team.broadcast_from_main(partial(_report, run, recipe, choices, table))


def _counted(table: ImageTable) -> str:
    counts = {name: f"{len(table.of_split(name))} {name}" for name in SPLITS if name in table.splits}
    return ", ".join(f"{own} (left alone)" if name == "test" else own for name, own in counts.items())


def _report(run: Run, recipe: Recipe, choices: Pretraining, table: ImageTable) -> None:
    """The page of the run, and a line on what came of it."""
    encoder, rows = load(run.folder), read_metrics(run.folder / METRICS)
    judged = "val" if "val" in table.splits else "train"
    metrics = encoder.provenance["metrics"]
    loss = metrics.get("val_loss", metrics["train_loss"])
    config, epoch = vit_of(encoder.model, "pre-training").config, metrics["epoch"]
    parameters = sum(parameter.numel() for parameter in encoder.model.parameters())
    right = f", {metrics['val_acc']:.1%} of the colours right" if "val_acc" in metrics else ""
    headline = f"{'validation' if judged == 'val' else 'training'} loss {loss:.4f}{right}, epoch {epoch + 1}"
    write_pretraining_report(
        run.folder / REPORT,
        title=f"{name_of(recipe)}, pre-trained on {without_place(table.name)}",
        headline=headline,
        facts={
            "objective": f"{choices.objective}: {choices.mask:.0%} of the patches, target {choices.target}",
            "model": f"{parameters:,} parameters, {config.layers} layers, {config.heads} heads, no head",
            "data": f"{table.root.name}: {_counted(table)} images, without their labels",
            "kept": f"epoch {epoch + 1}, " + ("the best by val_loss" if judged == "val" else "the last"),
            "seed": str(recipe.seed),
            "made with": ", ".join(f"{name} {number}" for name, number in encoder.provenance["versions"].items()),
        },
        findings=[str(line) for line in from_json((run.folder / FINDINGS).read_text("utf-8"))],
        rows=rows,
        kept=epoch,
        strips=_strips(run, recipe, choices, encoder, table.of_split(judged)),
        shown=f"Some {judged} images, evenly spread, what the network was shown of them, and what it made of it",
        recipe=without_places(recipe).to_toml(),
    )
    run.say(f"{headline}; report: {run.folder / REPORT}")
    run.say(f"to go on from it: vitkit train {table.name} --weights {run.folder}")


def _strips(run: Run, recipe: Recipe, choices: Pretraining, encoder: Classifier, table: ImageTable) -> list[Strip]:
    """Some pictures, what was shown of them, and what the network filled in."""
    preprocess, model = encoder.preprocess, vit_of(encoder.model, "pre-training")
    config, network = model.config, network_of(model, preprocess, choices, recipe.seed)
    try:
        network.task.load_state_dict(load_file(run.folder / FILLER))
    except (OSError, RuntimeError, SafetensorError) as error:
        raise VitkitError(f"{run.folder / FILLER} is damaged, so there is no report: {error}") from error
    images = EvaluationImages(table, preprocess)
    count = min(_SHOWN, len(images))
    chosen = [i * len(images) // count for i in range(count)]
    pixels = torch.stack([images[i][0] for i in chosen])  # (n, C, height, width)
    filled, hidden = network.eval().fill(pixels, keys_of_validation(recipe.seed, chosen))
    shown = patchify(pixels, config.patch_size).masked_fill(hidden[:, :, None], 0.0)  # the mean colour, about grey
    shown = unpatchify(shown, config.patch_size, config.image_size)
    return [
        Strip(table.paths[place], *(preprocess.picture_of(own[i].numpy()) for own in (pixels, shown, filled)))
        for i, place in enumerate(chosen)
    ]


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
) -> Path:
    """Pre-train an encoder, and leave a run folder.

    Args:
        fields: of `Pretraining`, and of a recipe but for what is about labels; `data` must be there.
        out: the run folder; by default the next free `runs/NAME-N`.
        force: write over the run that is in `out`.
        callbacks: objects with some of `loop.HOOKS`.
        loggers: objects such as `loggers.Logger`, beside the recipe's.
        say: takes each line of the story.

    Raises:
        VitkitError: the data or the model cannot be pre-trained on, or `out` exists, or another process works on it.
        Interrupted: a signal stopped the run; the folder holds the best model so far.
        OSError: the folder cannot be written.
    """
    choices, recipe = settle_fields(fields)
    observers = Observers(say, tuple(callbacks), tuple(loggers))

    def prepare(team: ProcessGroup, hold: ExitStack) -> Prepared:
        return _prepare(choices, recipe, "split" in fields, out, force, team, observers, hold)

    return drive(recipe, observers, prepare, _work_on(choices), _again)


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


def _read(choices: Pretraining, recipe: Recipe) -> ImageTable:
    assert recipe.data is not None
    if choices.unlabelled or has_no_folders(recipe.data):
        return read_unlabelled(recipe.data)
    try:
        table = read_source(recipe.data, recipe.layout)
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
    team: ProcessGroup,
    observers: Observers,
    hold: ExitStack,
) -> Prepared:
    """Write down everything that the pre-training starts from, in a folder that is held from then on."""
    table = _read(choices, recipe)
    is_unlabelled = len(table.classes) == 1
    if is_unlabelled and not is_split_given:
        recipe = recipe.replace(split=_UNLABELLED_SPLIT)
    check_team(recipe, team)
    check_place(out, table, None, weights_of(recipe))
    if out is not None:
        reserve_folder(out, hold, force=force)
    blueprint = _blueprint(recipe, choices)
    diagnosis = examine(table, blueprint.preprocess)
    before = ancestry_of(recipe, blueprint.pictures, None)
    own = divide(RunImages.of(diagnosis), recipe, before)
    if recipe.max_images is not None:
        own = limit(own, recipe.max_images, recipe.seed)
    name = f"{table.root.name}-{choices.objective}"
    run = observers.run(Path(out) if out is not None else new_run_folder(name, hold))
    try:
        clear(run.folder)
        run.say(f"vitkit {vitkit.__version__}: pre-training {name_of(recipe)} on {table.root} ({choices.objective})")
        for line in [*filter(None, [table.layout]), *describe_team(recipe, team)]:
            run.say(line)
        found = tell(run, [*ancestry_findings(own, recipe), *own.findings, *diagnosis.findings])
        write_text(run.folder / PRETRAINING, tomli_w.dumps(choices.to_dict()))
        write_start(run.folder, recipe, own, before, found, has_labels=False)
    except BaseException:
        discard_if_empty(run.folder)
        raise
    return run.folder, recipe, blueprint


def _blueprint(recipe: Recipe, choices: Pretraining) -> Blueprint:
    """Of the encoder; what cannot be built fails here, before the images are read."""
    import torch

    from vitkit.model.vit import VisionTransformer

    blueprint = blueprint_of(recipe, ())
    vit = check_encoder(blueprint.config, choices)
    with torch.device("meta"), torch.random.fork_rng():
        network_of(VisionTransformer(vit), blueprint.preprocess, choices, recipe.seed)
    return blueprint


def _work_on(choices: Pretraining) -> Work:
    return lambda run, recipe, blueprint: fit_and_report(run, recipe, choices, blueprint)


def _again(folder: Path) -> str:
    return f"vitkit pretrain --resume {folder}"


def resume(
    folder: str | Path,
    data_root: Path | None = None,
    *,
    callbacks: Sequence[Any] = (),
    loggers: Sequence[Any] = (),
    say: Say = print,
) -> Path:
    """Go on with a pre-training that was interrupted, to the weights it would have had.

    Args:
        folder: the run.
        data_root: the folder that holds its images now; None: where they were.
        callbacks: objects with some of `loop.HOOKS`.
        loggers: objects such as `loggers.Logger`, beside the recipe's.
        say: takes each line of the story.

    Raises:
        VitkitError: the folder holds no pre-training, or another process works on it.
    """
    folder = Path(folder)
    choices = choices_of_run(folder)
    recipe = load_of_run(folder / RECIPE)
    observers = Observers(say, tuple(callbacks), tuple(loggers))
    return drive_again(folder, recipe, observers, _work_on(choices), _again, data_root)


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
