"""Checkpoints in safetensors files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from vitkit.data.pictures import from_text
from vitkit.errors import VitkitError, first_line
from vitkit.weights.checkpoint import Checkpoint, Stored, without_prefixes

PICTURES = "vitkit_pictures"  # the key of the record in a safetensors file's metadata
_SAFE_TYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
}


def read_safetensors(path: Path) -> Checkpoint:
    """What the file holds; its numbers are read from it when they are asked for."""
    try:
        file: Any = safe_open(path, framework="pt")
        names: list[str] = file.keys()
        tensors = {name: _of_safetensors(file, name) for name in names}
        metadata = file.metadata() or {}
    except (SafetensorError, OSError) as error:
        raise VitkitError(f"{path} is damaged: {error}") from error
    except RuntimeError as error:  # torch's word for a file that cannot be mapped into memory
        raise VitkitError(f"{path} cannot be opened: {first_line(error)}") from error
    pictures = metadata.get(PICTURES)
    return Checkpoint(
        path=path,
        tensors=without_prefixes(tensors, path),
        metadata=metadata,
        pictures=None if pictures is None else from_text(pictures, path),
    )


def _of_safetensors(file: Any, name: str) -> Stored:
    view = file.get_slice(name)
    dtype = _SAFE_TYPES.get(view.get_dtype(), torch.int64)
    return Stored(tuple(view.get_shape()), dtype, lambda: file.get_tensor(name))
