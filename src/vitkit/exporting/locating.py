"""Find the first layer of an exported file whose output differs from that of the model."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from vitkit.errors import VitkitError
from vitkit.exporting.card import BLANK
from vitkit.exporting.formats import Format, Storage
from vitkit.inference.backends.span import WHOLE, Span
from vitkit.model.build import Model
from vitkit.model.network import Network
from vitkit.system.files import to_json

# Root mean square of the differences in a layer's output, relative to that of the output. In correct files of four
# small families, it was at most 7e-7 in float32, 8e-4 in float16 and 1e-2 in bfloat16.
_LIMIT = {"float32": 1e-5, "float16": 2e-2, "bfloat16": 0.2}
_IMAGES = 2  # images on which layers are compared
_DEPTH = 3  # in a `Network`, modules such as `network.layer1.0` are compared, but not the modules in them


def explain_difference(form: Format, model: Model, storage: Storage, images: list[Tensor], path: Path) -> str:
    """Describe where the outputs of a file and of its model begin to differ, and which precision works.

    The first layer that differs is found by bisection. In each step, the part of the model from the input to a layer is
    written to `path` in the same way as the file, and its outputs for images (C, height, width) are compared.
    """
    sample = torch.stack(images[:_IMAGES])
    outputs = _outputs(model, sample)
    names = list(outputs)
    low, high = 0, len(names)
    while low < high:
        middle = (low + high) // 2
        part = replace(storage, span=Span(layer=names[middle]))
        if _differs(form, model, part, sample, outputs[names[middle]], path):
            high = middle
        else:
            low = middle + 1
    where = f"the first layer that differs is {names[low]}" if low < len(names) else "only the last layers differ"
    if storage.precision == "float32":
        return where
    in_float32 = replace(storage, precision="float32", span=WHOLE)
    with torch.inference_mode():
        still_differs = _differs(form, model, in_float32, sample, model(sample), path)
    return f"{where}; " + ("in float32, it differs, too" if still_differs else "--precision float32 works")


def _outputs(model: Model, images: Tensor) -> dict[str, Tensor]:
    """Return the outputs (B, n) of the model's main layers, by name, in the order of the computation."""
    outputs: dict[str, Tensor] = {}

    def store(name: str, _layer: nn.Module, _inputs: object, output: object) -> None:
        if isinstance(output, Tensor) and output.is_floating_point() and len(output) == len(images):
            outputs.setdefault(name, output.flatten(1).float())

    if isinstance(model, Network):
        names = [name for name, _ in model.named_modules() if name and name.count(".") < _DEPTH]
    else:
        names = ["patch_embed", *(f"blocks.{i}" for i in range(len(model.blocks)))]
    hooks = [model.get_submodule(name).register_forward_hook(partial(store, name)) for name in names]
    try:
        with torch.inference_mode():
            model(images)
    finally:
        for hook in hooks:
            hook.remove()
    return outputs


def _differs(form: Format, model: Model, storage: Storage, images: Tensor, expected: Tensor, path: Path) -> bool:
    """Return whether the stored part of a model has another output than `expected` (B, n), or cannot be converted."""
    try:
        form.save(form.convert(model, storage), path, to_json({"checksum": BLANK}))
        runner, _ = form.open(path, "float32" if form.is_input else storage.precision)
        computed = torch.from_numpy(runner.compute(images.numpy()))
    except VitkitError:
        return True
    n = min(computed.shape[1], expected.shape[1])  # in the last block, files compute only the tokens that are read
    size = expected[:, :n].square().mean().sqrt().clamp(min=1e-6)
    difference = (computed[:, :n] - expected[:, :n]).square().mean().sqrt() / size
    return not difference.item() <= _LIMIT[storage.precision]  # also if the difference is NaN
