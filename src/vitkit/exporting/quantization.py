"""Quantise a model to INT8: NNCF inserts the quantisers, and the layers that suffer most stay in floating point.

Weights get one scale per output channel, and activations one per tensor, from the ranges that they have on training
images. The first layer, which reads pixels, and the head are never quantised: in DeiT-Ti, they cause more than half of
the error, and contain 2 % of the products (docs/log.md).
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.exporting.formats import INT8, Storage
from vitkit.inference.backends.graph_runner import Array, import_without_telemetry
from vitkit.system.progress import progress

IMAGES = 200  # training images that determine the ranges
_RANKED_ON = 32  # the number of these images on which layers are ranked
_SMOOTHING = 0.5  # alpha of SmoothQuant (Xiao et al. 2023, arXiv 2211.10438, eq. 4); NNCF takes -1 for none


def quantize(storage: Storage, graph: Any) -> Any:
    """Quantise a graph of ONNX or OpenVINO whose operations have the names of their modules.

    The graph is returned unchanged if the storage is not INT8.
    """
    if storage.precision != INT8:
        return graph
    assert storage.images is not None
    nncf = import_without_telemetry("nncf")
    is_onnx = hasattr(graph, "graph")
    inputs = np.split(storage.images, len(storage.images))
    to_input = (lambda image: {"images": image}) if is_onnx else None  # ONNX names its inputs
    smoothing = nncf.AdvancedSmoothQuantParameters(matmul=_SMOOTHING if storage.smooth else -1.0)
    return nncf.quantize(
        graph,
        nncf.Dataset(inputs, to_input),
        preset=nncf.QuantizationPreset.MIXED,
        model_type=nncf.ModelType.TRANSFORMER,
        subset_size=len(inputs),
        ignored_scope=nncf.IgnoredScope(patterns=[rf"(__module\.)?{re.escape(name)}[./].*" for name in storage.keep]),
        advanced_parameters=nncf.AdvancedQuantizationParameters(
            smooth_quant_alphas=smoothing,
            disable_bias_correction=True,  # it hardly changes the error, and fails for some graphs
        ),
    )


def floating_dtype(storage: Storage) -> torch.dtype:
    """Return the dtype of the weights that are not in INT8."""
    dtype: torch.dtype = torch.float32 if storage.precision == INT8 else getattr(torch, storage.precision)
    return dtype


def layers(module: nn.Module) -> dict[str, nn.Module]:
    """Return the layers that INT8 can quantise, in the order of the module: linear layers and convolutions."""
    quantizable = dict[str, nn.Module]()
    for name, part in module.named_modules():
        weight = getattr(part, "weight", None)
        if isinstance(weight, Tensor) and weight.ndim in (2, 4):
            quantizable[name] = part
    return quantizable


def first_and_last(module: nn.Module) -> tuple[str, ...]:
    """Return the names of the first and the last layer, which are never quantised."""
    names = list(layers(module))
    return names[0], names[-1]


@torch.inference_mode()
def rank_by_sensitivity(module: nn.Module, images: Array) -> list[str]:
    """Return the names of all layers except the first and the last, sorted by sensitivity, the highest first.

    The sensitivity of a layer is the error of the module's output if only this layer is quantised. The images are
    calibration images (n, C, height, width). The weights of the module are restored.
    """
    sample = torch.from_numpy(images[:_RANKED_ON])
    expected = _logits(module(sample))
    ranked = list(layers(module).items())[1:-1]
    errors = dict[str, float]()
    for name, layer in ranked:
        weight: Any = layer.weight
        exact = weight.clone()
        largest = weight.abs().flatten(1).amax(dim=1).clamp_min(1e-12)  # of each output channel
        step = largest.reshape(-1, *[1] * (weight.ndim - 1)) / 127
        weight.copy_((weight / step).round() * step)
        hook = layer.register_forward_pre_hook(_round_input)
        try:
            errors[name] = F.mse_loss(_logits(module(sample)), expected).item()
        finally:
            hook.remove()
            weight.copy_(exact)
        progress("ranking layers", len(errors), len(ranked))
    return sorted(errors, key=lambda name: -errors[name])


def _logits(outputs: Tensor | tuple[Tensor, ...]) -> Tensor:
    return outputs if isinstance(outputs, Tensor) else outputs[0]


def _round_input(_: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Round the input of a layer to 256 values between its smallest and its largest."""
    x = inputs[0]
    low, high = x.min().clamp_max(0), x.max().clamp_min(0)
    step = ((high - low) / 255).clamp_min(1e-12)
    return ((x / step).round() * step, *inputs[1:])
