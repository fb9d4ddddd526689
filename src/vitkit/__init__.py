"""vitkit: Vision Transformers you can trust, look inside and ship. Names are imported when first used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitkit.classifier import Classifier, Prediction
    from vitkit.config import ViTConfig
    from vitkit.data.preprocess import Preprocess
    from vitkit.errors import VitkitError
    from vitkit.model import VisionTransformer, create_model
    from vitkit.names import list_models
    from vitkit.weights import load
    from vitkit.weights.report import LoadReport

__version__ = "0.1.0"
__all__ = [
    "Classifier",
    "LoadReport",
    "Prediction",
    "Preprocess",
    "ViTConfig",
    "VisionTransformer",
    "VitkitError",
    "create_model",
    "list_models",
    "load",
]

_HOMES = {
    "Classifier": "classifier",
    "Prediction": "classifier",
    "load": "weights",
    "LoadReport": "weights.report",
    "Preprocess": "data.preprocess",
    "ViTConfig": "config",
    "list_models": "names",
    "VitkitError": "errors",
    "VisionTransformer": "model",
    "create_model": "model",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'vitkit' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"vitkit.{_HOMES[name]}"), name)
