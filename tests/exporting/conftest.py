"""A model folder and photographs, and the command line in this process."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from cli.conftest import data, trained, vitkit
from tiny import build
from vitkit.classifier import Classifier
from vitkit.data import Preprocess
from vitkit.inference.backends import graphs
from vitkit.inference.backends.span import WHOLE, Span
from vitkit.model import VisionTransformer
from vitkit.model.build import Model, classes_and_features

__all__ = ["data", "model", "trained", "vitkit"]


@pytest.fixture(autouse=True, scope="session")
def _converted_once() -> Iterator[None]:
    """Equal models are converted to ONNX once: it takes seconds, and most tests here export the same model."""
    convert, made = graphs.to_onnx, dict[Any, Any]()

    def to_onnx(model: Model, batch: int | None = None, dtype: torch.dtype = torch.float32, *rest: Any) -> Any:
        if not isinstance(model, VisionTransformer) or largest != graphs._LARGEST or is_changed(*rest):
            return convert(model, batch, dtype, *rest)
        weights = tuple(tensor.numpy().tobytes() for tensor in model.state_dict().values())
        key = (model.config, classes_and_features(model), weights, batch, dtype)
        if key not in made:
            made[key] = convert(model, batch, dtype, *rest)
        copied = type(made[key])()
        copied.CopyFrom(made[key])
        return copied

    def is_changed(change: Any = None, span: Span = WHOLE) -> bool:
        return span != WHOLE or (change is not None and change.args[0].precision == "int8")

    largest = graphs._LARGEST
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(graphs, "to_onnx", to_onnx)
        yield


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder that tests may read but not change; calibrated, with names that are not ASCII."""
    folder = tmp_path_factory.mktemp("export") / "model"
    classes = ("größer", "b", "c,d", "e", "f", "g", "日本")
    Classifier(build(), classes, Preprocess(size=(12, 16), mean=(0.4, 0.5, 0.6)), temperature=1.7).save(folder)
    return folder
