"""A model folder and photographs, and the command line in this process."""

from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
import pytest
import torch
from torch import nn

from cli.conftest import data, trained, vitkit
from once import once
from tiny import build
from vitkit.classifier import Classifier
from vitkit.data import Preprocess
from vitkit.inference.backends import graphs
from vitkit.inference.backends.span import Span
from vitkit.model import VisionTransformer
from vitkit.model.build import Model, classes_and_features

__all__ = ["data", "model", "trained", "vitkit"]


@pytest.fixture(autouse=True, scope="session")
def _converted_once() -> Iterator[None]:
    """Equal models are converted to ONNX once: it takes ten seconds, and most tests here export the same model.

    What vitkit does with the graph, such as storing its weights in another dtype, is done each time.
    """
    source, convert = graphs.source, torch.onnx.export

    def named(model: Model, batch: int | None, span: Span) -> graphs.Source:
        found = source(model, batch, span)
        if isinstance(model, VisionTransformer):
            name = sha256(repr((model, model.config, classes_and_features(model), batch, span)).encode())
            for tensor in model.state_dict().values():
                name.update(tensor.numpy().tobytes())
            found.module.__dict__["converted"] = f"{name.hexdigest()}.onnx"
        return found

    def export(module: nn.Module, *given: Any, **options: Any) -> Any:
        def make(path: Path) -> None:
            onnx.save(convert(module, *given, **options).model_proto, path)  # type: ignore[union-attr]

        if (name := module.__dict__.get("converted")) is None:
            return convert(module, *given, **options)
        return SimpleNamespace(model_proto=onnx.load(once(name, make)))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(graphs, "source", named)
        patch.setattr(torch.onnx, "export", export)
        yield


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder that tests may read but not change; calibrated, with names that are not ASCII."""
    folder = tmp_path_factory.mktemp("export") / "model"
    classes = ("größer", "b", "c,d", "e", "f", "g", "日本")
    Classifier(build(), classes, Preprocess(size=(12, 16), mean=(0.4, 0.5, 0.6)), temperature=1.7).save(folder)
    return folder
