"""vitkit: Vision Transformers you can trust, look inside and ship. Names are imported when first used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitkit.classifier import Classifier, Prediction, load
    from vitkit.config import ViTConfig, list_models
    from vitkit.data.preprocess import Preprocess
    from vitkit.errors import VitkitError
    from vitkit.model import VisionTransformer, create_model

__version__ = "0.1.0"
__all__ = [
    "Classifier",
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
    "load": "classifier",
    "Preprocess": "data.preprocess",
    "ViTConfig": "config",
    "list_models": "config",
    "VitkitError": "errors",
    "VisionTransformer": "model",
    "create_model": "model",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'vitkit' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"vitkit.{_HOMES[name]}"), name)
