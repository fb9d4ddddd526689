"""The cost of a ViT, a hybrid and a ResNet (app. D.5), and of the pre-trainings of the paper's Table 2."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from vitkit.experiments.comparison_request import names_of
from vitkit.experiments.lab import Costs, result_of
from vitkit.model import Model, NetworkConfig, VisionTransformer, config_for, split_network
from vitkit.profiling import describe, interleave, random_model
from vitkit.training import PaperTraining, Recipe, paper_training
from vitkit.verbs import Result

BATCH, ROUNDS = 16, 5
_UTILISATION = 0.4  # the assumed fraction of the peak of a core
_TPU_V3_CORE = 61.5e12  # FLOP/s in bfloat16, half a chip's (https://cloud.google.com/tpu/docs/v3)

# Table 2: thousand TPUv3-core-days of the pre-training, and top-1 accuracy on ImageNet; the recipe, if it is published.
TABLE_2: dict[str, tuple[str | None, float, str]] = {
    "ViT-H/14, JFT": ("paper-vit-h14-jft", 2500, "88.55"),
    "ViT-L/16, JFT": ("paper-vit-l16-jft", 680, "87.76"),
    "ViT-L/16, ImageNet-21k": ("paper-vit-l16-imagenet21k", 230, "85.30"),
    "BiT-L (ResNet152x4)": (None, 9900, "87.54"),
    "Noisy Student (EfficientNet-L2)": (None, 12300, "88.4"),
}


def measure_costs(experiment: Costs, models: str, side: int) -> Result:
    """Time a forward pass of each model on images of `side` and of twice as many pixels a side, in turn.

    `models` are names separated by commas.
    """
    built: dict[tuple[str, int], Model] = {}
    functions: dict[str, Callable[[], Tensor]] = {}
    for name, pixels in itertools.product(names_of(models), (side, 2 * side)):
        network = split_network(name)
        if network is None:
            model = random_model(config_for(name, image_size=pixels))
        else:
            library, network_name = network
            model = random_model(NetworkConfig(library=library, name=network_name, image_size=(pixels, pixels)))
        built[name, pixels] = model
        functions[f"{name} at {pixels} pixels"] = torch.inference_mode()(
            lambda model=model, pixels=pixels: model(torch.zeros(BATCH, 3, pixels, pixels))
        )
    timings = interleave(functions, ROUNDS)
    rows: list[tuple[str, ...]] = []
    entries: list[dict[str, Any]] = []
    for (name, pixels), model in built.items():
        info, speed = describe(model.config), timings[f"{name} at {pixels} pixels"].rate(BATCH)
        entries.append(
            {
                "name": name,
                "image_size": pixels,
                "parameters": info.parameters,
                "gmacs": info.gmacs,
                "images_per_s": speed.median,
                "quartiles": [speed.low, speed.high],
                "activation_bytes": info.activation_bytes,
            }
        )
        rows.append(
            (
                name,
                f"{pixels}x{pixels}",
                f"{info.parameters:,}",
                f"{info.gmacs:.3g}",
                f"{speed.median:,.0f}",
                f"{speed.low:,.0f} to {speed.high:,.0f}",
                f"{info.activation_bytes / 2**20:.2f}",
            )
        )
    headings = ("", "images", "parameters", "GMACs", "images/s", "quartiles", "MiB an image in training")
    remarks = []
    for small, large in zip(entries[::2], entries[1::2], strict=True):
        time, gmacs = small["images_per_s"] / large["images_per_s"], large["gmacs"] / small["gmacs"]
        remarks.append(f"{small['name']}: four times the pixels take {time:.1f} times as long ({gmacs:.1f} x GMACs)")
    remarks.append(f"batches of {BATCH} images, {ROUNDS} rounds in turn, float32, {torch.get_num_threads()} threads")
    figures = {"experiment": experiment.name, "preset": "small", "models": entries}
    return result_of(experiment, figures, headings, tuple(rows), tuple(remarks))


def predict_core_days(experiment: Costs) -> Result:
    """Predict the core-days of the pre-trainings of Table 2, next to those that the paper states."""
    rows, models = [], []
    for name, (recipe, paper_days, accuracy) in TABLE_2.items():
        entry: dict[str, Any] = {"name": name, "paper_core_days": paper_days, "paper_accuracy": accuracy}
        cells = ["-"] * 4
        if recipe is not None:
            training = paper_training(Recipe.load(recipe))
            parameters, steps = describe(training.config).parameters, training.steps
            flops = training_flops(training)
            days = flops / (_UTILISATION * _TPU_V3_CORE) / 86_400
            entry |= {"recipe": recipe, "parameters": parameters, "steps": steps, "flops": flops, "core_days": days}
            cells = [f"{parameters:,}", f"{steps:,}", f"{flops:.3g}", f"{days:,.0f}"]
        models.append(entry)
        rows.append((name, *cells, f"{paper_days:,}", accuracy))
    headings = ("", "parameters", "steps", "FLOPs", "TPUv3-core-days", "paper: TPUv3-core-days", "paper: ImageNet, %")
    remarks = (
        f"core-days are counted at {_UTILISATION:.0%} of a core's peak; nothing was trained",
        "FLOPs are those that vitkit executes: its last block computes only the class token",
    )
    figures = {"experiment": experiment.name, "preset": "paper", "models": models}
    figures["command"] = f"vitkit lab {experiment.name} --preset paper"
    return result_of(experiment, figures, headings, tuple(rows), remarks)


def training_flops(training: PaperTraining) -> int:
    """Count the FLOPs of a training, from the matrix products and convolutions of a step with one image.

    The step is taken with fake tensors, which have no numbers and use no memory, and with fused attention, as on GPUs.
    Its backward pass computes the attention weights again, which is counted.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode  # imports the compiler, which takes a second
    from torch.utils.flop_counter import FlopCounterMode

    config = training.config
    with torch.random.fork_rng(), torch.device("meta"):
        # Other initialisations compute with values, which meta tensors lack.
        model = random_model(config.replace(init="trunc_normal")).train()
    with FakeTensorMode(allow_non_fake_inputs=True), FlopCounterMode(display=False) as counter:
        model.to_empty(device="cpu")
        if isinstance(model, VisionTransformer):
            model.fused_attention = True
        model(torch.empty(1, config.in_channels, *config.image_size)).sum().backward()
    return counter.get_total_flops() * training.corpus.images * training.recipe.epochs
