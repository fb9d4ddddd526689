"""What a checkpoint holds: names and shapes first, numbers when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitkit.errors import VitkitError
from vitkit.system.files import from_json

_PREFIXES = ("module.", "_orig_mod.", "backbone.", "model.", "teacher.")


@dataclass(frozen=True)
class Stored:
    """A tensor in a file: its shape and type are known, its numbers are read on demand."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    read: Callable[[], Tensor]


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """What a file or folder holds.

    Attributes:
        path: where it is.
        tensors: by name, wrappers and prefixes taken off.
        wrappers: the keys that the weights were found under.
        config: `config.json` beside the weights.
        preprocessor: `preprocessor_config.json` beside the weights.
        metadata: of a safetensors file.
        passed_over: parts of the file that hold other weights, and why they were not taken.
        pictures: the record of what the weights were trained on (`data.pictures`), where vitkit wrote the file.
    """

    path: Path
    tensors: Mapping[str, Stored]
    wrappers: tuple[str, ...] = ()
    config: Mapping[str, Any] | None = None
    preprocessor: Mapping[str, Any] | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    passed_over: Mapping[str, str] = field(default_factory=dict)
    pictures: bytes | None = None


def noted(checkpoint: Checkpoint) -> dict[str, Any]:
    """What vitkit's export noted beside the tensors: fields of the configuration, pixels, classes, image size."""
    try:
        said = from_json(checkpoint.metadata["vitkit"])
        pixels = {name: tuple(item) if isinstance(item, list) else item for name, item in said["preprocess"].items()}
        note: dict[str, Any] = {
            "fields": {**said["config"], "patch_size": tuple(said["patch_size"])},
            "preprocess": pixels,
            "image_size": tuple(said["image_size"]),
        }
    except (ValueError, KeyError, TypeError, AttributeError):  # there is none, or it is somebody else's
        return {}
    return {**note, "classes": tuple(said["classes"])} if "classes" in said else note


def without_prefixes(tensors: Mapping[str, Stored], path: Path) -> dict[str, Stored]:
    """Names without what wrappers put before them (data parallel, compiled, a model within a model)."""
    bare: dict[str, Stored] = {}
    for name, tensor in tensors.items():
        stripped = name
        while prefix := next((prefix for prefix in _PREFIXES if stripped.startswith(prefix)), None):
            stripped = stripped.removeprefix(prefix)
        if stripped in bare:
            raise VitkitError(
                f"{path} holds {stripped} more than once, under several prefixes; it is not clear which counts"
            )
        bare[stripped] = tensor
    return bare
