"""Equal models are converted to ONNX once: it takes ten seconds, and many tests export the same model.

What vitkit does with the graph, such as storing its weights in another dtype, is done each time.
"""

from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from once import once
from vitkit.inference.backends import graphs
from vitkit.inference.backends.pixels import Pixels
from vitkit.model import VisionTransformer
from vitkit.model.build import Model, classes_and_features

_source, _convert = graphs.converter_input, torch.onnx.export


def keep(replace: Callable[..., None]) -> None:
    """Keep conversions for all processes that run tests; `replace` is the `setattr` of a monkeypatch."""
    replace(graphs, "converter_input", _named)
    replace(torch.onnx, "export", _export)


def _named(model: Model, batch: int | None, pixels: Pixels | None = None) -> graphs.ConverterInput:
    found = _source(model, batch, pixels)
    if isinstance(model, VisionTransformer) and pixels is None:  # tests break how pixels are read
        name = sha256(repr((model, model.config, classes_and_features(model), batch)).encode())
        for tensor in model.state_dict().values():
            name.update(tensor.numpy().tobytes())
        found.module.__dict__["converted"] = f"{name.hexdigest()}.onnx"
    return found


def _export(module: nn.Module, *given: Any, **options: Any) -> Any:
    if (name := module.__dict__.get("converted")) is None:
        return _convert(module, *given, **options)
    import onnx

    def make(path: Path) -> None:
        onnx.save(_convert(module, *given, **options).model_proto, path)  # type: ignore[union-attr]

    return SimpleNamespace(model_proto=onnx.load(once(name, make)))
