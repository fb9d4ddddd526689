"""vitkit: Vision Transformers you can trust, look inside and ship. Names are imported when first used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitkit.classifier import Classifier
    from vitkit.data.preprocess import Preprocess
    from vitkit.errors import VitkitError
    from vitkit.inference.prediction import Prediction
    from vitkit.model.config import ViTConfig
    from vitkit.model.load_report import LoadReport
    from vitkit.model.names import list_models
    from vitkit.model.vit import VisionTransformer, create_model
    from vitkit.weights import load

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
    "Prediction": "inference.prediction",
    "load": "weights",
    "LoadReport": "model.load_report",
    "Preprocess": "data.preprocess",
    "ViTConfig": "model.config",
    "list_models": "model.names",
    "VitkitError": "errors",
    "VisionTransformer": "model.vit",
    "create_model": "model.vit",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'vitkit' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"vitkit.{_HOMES[name]}"), name)
