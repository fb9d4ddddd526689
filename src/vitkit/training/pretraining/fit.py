"""From the folder of a pre-training, where everything is settled, to the best encoder and its page."""

from __future__ import annotations

from functools import partial

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from vitkit.classifier import Classifier
from vitkit.data.loading import EvaluationImages
from vitkit.data.splits import SPLITS
from vitkit.data.table import ImageTable
from vitkit.data.whereabouts import images_of_run, read_contents
from vitkit.errors import VitkitError
from vitkit.model.build import vit_of
from vitkit.model_folder import RECORD
from vitkit.reporting.pretraining_report import Strip, write_pretraining_report
from vitkit.system.files import from_json, without_place
from vitkit.system.run_files import FILLER, FINDINGS, METRICS, REPORT, SPLIT
from vitkit.training.checkpoint import identity
from vitkit.training.descent import begin, data_of, descend
from vitkit.training.metrics_file import read_metrics
from vitkit.training.pretraining.choices import Pretraining
from vitkit.training.pretraining.objective import Filling, keys_of_validation, with_keys
from vitkit.training.pretraining.patches import patchify, unpatchify
from vitkit.training.pretraining.setup import network_of, new_encoder, use_fused_attention
from vitkit.training.recipe import Recipe
from vitkit.training.recipe_names import name_of, without_places
from vitkit.training.run_folder import Run, reporting
from vitkit.weights import load

_SHOWN = 8  # pictures of the page


def fit_and_report(run: Run, recipe: Recipe, choices: Pretraining) -> None:
    """Everything after the data is settled; what it reads is what a resumed run reads."""
    table = images_of_run(run.folder / SPLIT, progress=run.progress)
    data_hash = from_json((run.folder / SPLIT).read_text(encoding="utf-8"))["hash"]
    classifier = run.team.in_turn(lambda: new_encoder(recipe, choices, table, data_hash, run.progress))
    record = run.folder / RECORD
    classifier.pictures = record.read_bytes() if record.is_file() else None
    run.say(f"images, without their labels: {_counted(table)}")
    network = network_of(vit_of(classifier.model, "pre-training"), classifier.preprocess, choices, recipe.seed)
    data = data_of(recipe, table, classifier, run.team)
    fabric = begin(run, recipe, classifier, data)
    use_fused_attention(network, fused=fabric.device.type == "cuda")
    own = {**identity(recipe, table, read_contents(run.folder / SPLIT)), **choices.to_dict()}
    objective = Filling(has_hits=bool(network.task.has_hits))
    descend(run, recipe, with_keys(data, recipe.seed), classifier, objective, fabric, 0.0, own, network)
    with reporting(run):
        run.team.by_first(partial(_report, run, recipe, choices, table))


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
