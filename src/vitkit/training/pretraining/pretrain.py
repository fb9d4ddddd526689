"""Run a pre-training: read and split the images, train the network, and write the report.

A pre-training passes through stages of its own (`_stages`). The run folder is also the model folder of the encoder,
which has no head.

Images in class folders are split as `vitkit train` splits them. The test images are not used. A later fine-tuning of
the encoder keeps this split, so that it can be tested on images that the encoder has not seen
(docs/decisions/0024-pre-training.md).

The training loop receives the objective `Reconstruction` and `KeyedImages`, which have keys instead of labels.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from html import escape
from pathlib import Path
from typing import TypeVar

import tomli_w
import torch
from matplotlib.figure import Figure
from safetensors.torch import load_file
from torch import Tensor

from vitkit.data.loading import BatchedImages, EvaluationImages, Images, mix_seeds
from vitkit.data.preprocess import Preprocess
from vitkit.data.sources import has_no_folders, read_source, read_unlabelled
from vitkit.data.splits import SPLITS, check_trainable
from vitkit.data.table import ImageTable
from vitkit.errors import VitkitError
from vitkit.model.build import vit_of
from vitkit.model.config import ViTConfig
from vitkit.model.names import Config
from vitkit.model.vit import Attention, VisionTransformer
from vitkit.reporting.plots import draw_curve
from vitkit.system.files import public_path, write_text
from vitkit.system.run_files import FILLER, PRETRAINING, RECIPE, REPORT, resume_command
from vitkit.text.pages import (
    component,
    details,
    figure,
    finding,
    image,
    new_figure,
    panel,
    panels,
    table,
    to_png,
    write_page,
)
from vitkit.training.adapters import needs_every_patch
from vitkit.training.checkpoint import identity
from vitkit.training.defaults import check_effects, weights_of
from vitkit.training.distributed import ALONE, ProcessGroup, check_team
from vitkit.training.fine_tune import make_image_data, prepare_device, run_training
from vitkit.training.inputs import Inputs
from vitkit.training.lineage import RunImages, ancestry_findings, ancestry_of, assign_splits
from vitkit.training.pretraining import LABEL_FIELDS, OBJECTIVES, Pretraining
from vitkit.training.pretraining.objectives import (
    MaskedAutoencoding,
    MaskedPatchPrediction,
    SelfSupervised,
    patchify,
    unpatchify,
)
from vitkit.training.recipe import Recipe, name_of, without_absolute_paths
from vitkit.training.request import NO_HOOKS, Hooks, load_run_recipe
from vitkit.training.run import Stages, carry_out, continue_run
from vitkit.training.run_folder import Run, check_output_folder
from vitkit.training.stages.examine import examine_images
from vitkit.training.stages.split import limit
from vitkit.training.stages.write import introduce, say_findings, started_run_folder
from vitkit.training.start import augment_of, blueprint_of, new_classifier


def pretrain(
    asked: Recipe,
    out: str | Path | None = None,
    *,
    choices: Pretraining = Pretraining(),
    force: bool = False,
    hooks: Hooks = NO_HOOKS,
) -> Path:
    """Pre-train an encoder, and return its run folder.

    Args:
        asked: the requested recipe, without fields about labels; `data` is required.
        out: the run folder; by default the next free `runs/NAME-OBJECTIVE-N`.
        choices: what is learned.
        force: overwrite the run in `out`.
        hooks: callbacks and loggers of the caller.

    Raises:
        VitkitError: the data or the model cannot be used, `out` exists, or another process is working on the run.
        Interrupted: a signal stopped the run. The folder contains the best model so far.
        OSError: the folder cannot be written.
    """
    fields = {**choices.set_fields(), **asked.set_fields()}
    choices, recipe = resolve_pretraining(asked, choices)
    run = Run(recipe, None if out is None else Path(out), hooks=hooks, request_fields=fields)
    return carry_out(run, _stages(choices), force=force)


def resume_pretraining(folder: str | Path, data_root: Path | None = None, *, hooks: Hooks = NO_HOOKS) -> Path:
    """Continue an interrupted pre-training. The final weights are the same as without the interruption.

    Args:
        folder: the run folder.
        data_root: the folder that now contains the images; None if they have not moved.
        hooks: callbacks and loggers of the caller.

    Raises:
        VitkitError: the folder contains no pre-training, or another process is working on it.
    """
    folder = Path(folder)
    stages = _stages(choices_of_run(folder))
    return continue_run(Run(load_run_recipe(folder / RECIPE), hooks=hooks), folder, stages, data_root)


def choices_of_run(folder: Path) -> Pretraining:
    """Return the options of the pre-training in a run folder.

    Raises:
        VitkitError: the folder contains no pre-training, or the file with the options is damaged.
    """
    file = folder / PRETRAINING
    if not file.is_file():
        hint = f"; continue it with {resume_command(folder)}" if (folder / RECIPE).is_file() else ""
        message = f"{folder} is not a pre-training of vitkit: it has no {PRETRAINING}{hint}"
        raise VitkitError("training.run-kind", message)
    try:
        return Pretraining(**tomllib.loads(file.read_text(encoding="utf-8")))
    except (TypeError, ValueError) as error:
        message = f"{file} is damaged: {error}; correct it, or pre-train again"
        raise VitkitError("training.run-damaged", message) from error


def resolve_pretraining(asked: Recipe, choices: Pretraining) -> tuple[Pretraining, Recipe]:
    """Return the options and the recipe of a pre-training, with the objective's defaults for unset fields.

    Raises:
        VitkitError: a field is about labels or has no effect, or there is no data.
    """
    if asked.data is None:
        message = "no data: pass a folder of images, or the name of a data set such as digits"
        raise VitkitError("training.data-missing", message)
    for name in LABEL_FIELDS:
        if name in asked.given:
            message = f"{name} concerns labels, and pre-training does not use them: leave it out"
            raise VitkitError("training.field-refused", message)
    weights = asked.weights if "weights" in asked.given else "none"
    if weights == "none" and asked.model is None:
        asked = asked.replace(model="vit_tiny_patch16_224")
    method = "scratch" if weights == "none" else "full"
    recipe = Recipe(**OBJECTIVES[choices.objective].recipe).updated(asked)
    recipe = recipe.replace(weights=weights, method=method, balance="none")
    check_effects(recipe, asked)
    return choices.resolved(), recipe


def check_encoder(config: Config, choices: Pretraining) -> ViTConfig:
    """Check that a model supports the objective, and return its configuration.

    Raises:
        VitkitError: the model is not a Vision Transformer, its stem would reveal hidden patches, the objective would
            not train a part of it, it does not normalise the features of patches, or the objective is mae and the model
            needs all patches.
    """
    flag, reason = f"--objective {choices.objective}", None
    if not isinstance(config, ViTConfig):
        message = f"{flag}: {config.full_name} has no patches to hide; use a Vision Transformer"
        raise VitkitError("training.model-unsupported", message)
    needs_all = needs_every_patch(config)
    if config.stem is not None:
        reason = "hides patches, but the stem of a hybrid sees them from their neighbours; use a plain ViT"
    elif config.distill_token or config.distill_head:
        reason = "nothing trains the distillation token; pre-train the model without it"
    elif config.representation_size is not None:
        reason = "nothing trains the representation layer; leave out _in21k, or has_logits"
    elif config.fc_norm:
        reason = "this model normalises only its pooled features, not the patches; use a model without fc_norm"
    elif choices.objective == "mae" and needs_all is not None:
        reason = f"{needs_all}; use --objective masked-patch"
    if reason is not None:
        raise VitkitError("training.model-unsupported", f"{flag}: {reason}")
    return config


def network_of(encoder: VisionTransformer, preprocess: Preprocess, choices: Pretraining, seed: int) -> SelfSupervised:
    """Return the network to train: the encoder and its task. Equal seeds give equal weights."""
    torch.manual_seed(mix_seeds(seed, 1))
    if choices.objective == "mae":
        return SelfSupervised(encoder, MaskedAutoencoding(encoder.config, choices))
    return SelfSupervised(encoder, MaskedPatchPrediction(encoder.config, choices, preprocess))


# --- The stages -----------------------------------------------------------------------------------------------


def _stages(choices: Pretraining) -> Stages:
    prepare = (partial(_open, choices), examine_images, partial(_write, choices))
    return Stages(prepare, partial(_fit, choices), (partial(_report, choices),))


def _open(choices: Pretraining, run: Run) -> None:
    """Read the list of images, and check that the network can be built. No image is read."""
    recipe = run.request
    assert recipe.data is not None
    if choices.unlabelled or has_no_folders(recipe.data, follow_links=recipe.follow_links):
        run.source = read_unlabelled(recipe.data, follow_links=recipe.follow_links)
    else:
        try:
            run.source = read_source(recipe.data, recipe.layout, follow_links=recipe.follow_links)
            check_trainable(run.source)
        except VitkitError as error:
            if not Path(recipe.data).is_dir():
                raise
            raise VitkitError(error.code, f"{error}; or use every image below it with --unlabelled") from error
    if len(run.source.classes) == 1 and "split" not in recipe.given:
        recipe = recipe.replace(split=(0.95, 0.05, 0.0))  # nothing is tested
    check_team(recipe, run.team)
    check_output_folder(run.out, run.source, None, weights_of(recipe))
    if run.out is not None and run.reserve is not None:
        run.reserve(run.out)
    run.recipe = recipe
    run.blueprint = blueprint_of(recipe, ())
    config = check_encoder(run.blueprint.config, choices)
    with torch.device("meta"), torch.random.fork_rng():
        network_of(VisionTransformer(config), run.blueprint.preprocess, choices, recipe.seed)


def _write(choices: Pretraining, run: Run) -> None:
    """Divide the images as `vitkit train` does, and write all inputs of the pre-training into the run folder."""
    run.seen_before = ancestry_of(run.recipe, run.blueprint.record_bytes, None)
    images = RunImages(run.diagnosis.table, run.diagnosis.facts, run.groups)
    split_images = assign_splits(images, run.recipe, run.seen_before)
    if run.recipe.max_images is not None:
        split_images = limit(split_images, run.recipe.max_images, run.recipe.seed)
    with started_run_folder(run, f"{run.source.root.name}-{choices.objective}"):
        introduce(run, f"pre-training {name_of(run.recipe)} on {run.source.place} ({choices.objective})")
        findings = [*ancestry_findings(split_images, run.recipe), *split_images.findings, *run.diagnosis.findings]
        findings = say_findings(run, findings)
        write_text(run.folder / PRETRAINING, tomli_w.dumps(choices.to_dict()))
        run.inputs = Inputs.of(split_images, run.seen_before, findings, has_labels=False)
        run.inputs.write(run.folder, run.recipe, has_labels=False)


def _fit(choices: Pretraining, run: Run) -> None:
    recipe, inputs = run.recipe, run.inputs
    run.blueprint = run.team.main_first(lambda: getattr(run, "blueprint", None) or blueprint_of(recipe, ()))
    unlabelled = replace(inputs.table, classes=(), sets=())
    classifier = run.team.main_first(lambda: new_classifier(run.blueprint, unlabelled, inputs.hash))
    classifier.provenance["pretraining"] = choices.to_dict()
    classifier.pictures = inputs.record_bytes
    run.say(f"images, without their labels: {_image_counts(inputs.table)}")
    network = network_of(vit_of(classifier.model, "pre-training"), classifier.preprocess, choices, recipe.seed)
    data: BatchedImages = make_image_data(run, classifier, augment_of(recipe))
    data.train = KeyedImages(data.train, recipe.seed, TRAINING_KEYS)
    data.val = KeyedImages(data.val, recipe.seed, VALIDATION_KEYS)
    fabric = prepare_device(run, classifier, data)
    for module in network.task.modules():  # the decoder computes attention as the encoder does
        if isinstance(module, Attention):
            module.fused = fabric.device.type == "cuda"
    settings = {**identity(recipe, inputs.table, inputs.contents), **choices.to_dict()}
    run.classifier = run_training(run, data, classifier, Reconstruction(), fabric, settings, network=network)


def _image_counts(images: ImageTable) -> str:
    counts = []
    for name in SPLITS:
        if name in images.splits:
            suffix = " (not used)" if name == "test" else ""
            counts.append(f"{len(images.of_split(name))} {name}{suffix}")
    return ", ".join(counts)


def _report(choices: Pretraining, run: Run) -> None:
    encoder, recipe, images = run.classifier, run.recipe, run.inputs.table
    split, kind, choice = ("val", "validation", "the best by val_loss")
    if "val" not in images.splits:
        split, kind, choice = ("train", "training", "the last")
    metrics, config = encoder.provenance["metrics"], vit_of(encoder.model, "pre-training").config
    epoch, loss = metrics["epoch"], metrics.get("val_loss", metrics["train_loss"])
    parameters = sum(parameter.numel() for parameter in encoder.model.parameters())
    accuracy = f", {metrics['val_acc']:.1%} of the colours right" if "val_acc" in metrics else ""
    title = f"{name_of(recipe)}, pre-trained on {public_path(images.name)}"
    headline = f"{kind} loss {loss:.4f}{accuracy}, epoch {epoch + 1}"
    note = "The loss measures how well hidden patches are filled in, not how good a classifier will be."
    facts = {
        "objective": f"{choices.objective}: {choices.mask:.0%} of the patches, target {choices.target}",
        "model": f"{parameters:,} parameters, {config.layers} layers, {config.heads} heads, no head",
        "data": f"{images.root.name}: {_image_counts(images)} images, without their labels",
        "kept": f"epoch {epoch + 1}, {choice}",
        "seed": str(recipe.seed),
        "made with": ", ".join(f"{name} {number}" for name, number in encoder.provenance["versions"].items()),
    }
    caption = (
        f"Some {split} images, evenly spread, with their visible parts and the predictions of the network. Patches "
        "that were predicted normalised are drawn with their mean and contrast."
    )
    strips = image("Pictures filled in", to_png(_draw_strips(choices, run, images.of_split(split))), "png")
    losses = figure("Loss by epoch", to_png(draw_losses(run.metrics.rows, epoch)))
    toml = escape(without_absolute_paths(recipe).to_toml())
    body = [
        f"<h1>{escape(title)}</h1>",
        component("verdict", "note", "Fine-tune from this run, and compare with random weights", beside=headline),
        *(finding(str(item)) for item in run.inputs.findings),
        panel("Pictures filled in", strips, f'<p class="soft">{caption}</p>'),
        panels(losses, panel("What this says", f"<p>No labels were used. {note}</p>")),
        "<h2>Details</h2>",
        details("The run", table([[escape(name), escape(value)] for name, value in facts.items()])),
        details("The complete recipe", f'<pre tabindex="0">{toml}</pre>'),
    ]
    write_page(run.folder / REPORT, title, body)
    run.say(f"{headline}; report: {run.folder / REPORT}")
    run.say(f"to train from it: vitkit train {images.name} --weights {run.folder}")


def _draw_strips(choices: Pretraining, run: Run, images: ImageTable) -> Figure:
    """Draw a column for each of some images: complete, with only its visible patches, and with the predictions."""
    seed, preprocess = run.recipe.seed, run.classifier.preprocess
    encoder = vit_of(run.classifier.model, "pre-training")
    network = network_of(encoder, preprocess, choices, seed)
    network.task.load_state_dict(load_file(run.folder / FILLER))
    keyed = KeyedImages(EvaluationImages(images, preprocess), seed, VALIDATION_KEYS)
    count = min(8, len(keyed))
    chosen = [keyed[i * len(keyed) // count] for i in range(count)]  # evenly spread
    pixels = torch.stack([picture for picture, _ in chosen])
    keys = torch.tensor([key for _, key in chosen])
    filled, hidden = network.eval().fill(pixels, keys)
    patch, size = encoder.config.patch_size, encoder.config.image_size
    visible = patchify(pixels, patch).masked_fill(hidden[:, :, None], 0.0)  # hidden patches become grey
    rows = {"picture": pixels, "shown": unpatchify(visible, patch, size), "filled in": filled}
    drawn = new_figure(1.3 * count + 0.9, 1.3 * len(rows))
    axes = drawn.subplots(len(rows), count, squeeze=False)
    for row, (name, versions) in zip(axes, rows.items(), strict=True):
        row[0].set_ylabel(name, fontsize=8, rotation=0, ha="right", va="center")
        for axis, version in zip(row, versions, strict=True):
            axis.imshow(preprocess.picture_of(version.numpy()), interpolation="nearest")
            axis.set(xticks=[], yticks=[])
            axis.set_frame_on(False)
    return drawn


def draw_losses(rows: Sequence[Mapping[str, float]], kept: int) -> Figure:
    """Plot training and validation loss by epoch, and mark epoch `kept`, counting from 0."""
    drawn = new_figure(6, 3.4)
    draw_curve(drawn.subplots(), rows, "loss", kept)
    return drawn


# --- What the training loop receives --------------------------------------------------------------------------

_T = TypeVar("_T")


class Reconstruction:
    """Predict the hidden patches of each image, which its key determines (a `losses.TrainingObjective`)."""

    takes_labels = True  # the keys are passed as labels, and never mixed
    evaluates_shares = True

    def to(self, device: torch.device) -> Reconstruction:
        return self  # there are no tensors to move

    def targets(self, labels: Tensor) -> Tensor:
        raise NotImplementedError("keys cannot be mixed")

    def call_network(self, network: Callable[..., _T], images: Tensor, labels: Tensor) -> _T:
        """Return the network's figures for some images; `labels` are the keys of the images."""
        return network(images, labels)

    def loss(self, heads: Sequence[Tensor], images: Tensor, targets: Tensor) -> Tensor:
        return heads[0].mean()

    def hits(self, heads: Sequence[Tensor], targets: Tensor) -> Tensor:
        """Return the fraction of correct predictions for each image, (B,); empty if the task predicts pixels."""
        return heads[1].detach() if len(heads) > 1 else heads[0].new_zeros(0)

    def validation_figures(self, outputs: Tensor, labels: Tensor, team: ProcessGroup = ALONE) -> dict[str, float]:
        means = [team.mean_of(mean, len(outputs)) for mean in outputs.double().mean(dim=0).tolist()]
        return dict(zip(("val_loss", "val_acc"), means, strict=False))


TRAINING_KEYS, VALIDATION_KEYS = 1, 2


class KeyedImages(Images):
    """Images with keys instead of labels.

    A key is a function of the seed and the index of the image. The index of a training image includes the epoch, so the
    image has another key in every epoch. A validation image always has the same key. `kind` is `TRAINING_KEYS` or
    `VALIDATION_KEYS`, so that training and validation images have different keys.
    """

    def __init__(self, images: Images, seed: int, kind: int) -> None:
        self.images, self.seed, self.kind = images, seed, kind
        self.labels, self.paths, self.shards = images.labels, images.paths, images.shards

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, key: int | tuple[int, ...]) -> tuple[Tensor, int]:
        indices = key if isinstance(key, tuple) else (key,)
        return self.images[key][0], mix_seeds(self.seed, self.kind, *indices) % 2**32 - 2**31  # 32 bits, signed
