"""Files of which a tensor is missing, has another shape or has no numbers."""

import dataclasses
import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from vitkit.weights import StoredTensor
from vitkit.weights.loading import LoadPlan, inspect_source


class Spoilt:
    """A file or folder with weights, of which one tensor may be missing or have another shape."""

    def __init__(self, path: Path) -> None:
        self.source = inspect_source(path)
        assert self.source.checkpoint is not None
        self.tensors = dict(self.source.checkpoint.tensors)

    def plan(self, tensors: Mapping[str, StoredTensor], **told: Any) -> LoadPlan:
        checkpoint = dataclasses.replace(self.source.checkpoint, tensors=tensors)  # type: ignore[type-var]
        return dataclasses.replace(self.source, checkpoint=checkpoint).plan(**told)

    def without(self, name: str, **told: Any) -> LoadPlan:
        return self.plan({other: own for other, own in self.tensors.items() if other != name}, **told)

    def widened(self, name: str, **told: Any) -> LoadPlan:
        """With twice as many numbers in each row."""
        *rows, last = self.tensors[name].shape
        return self.plan(
            {**self.tensors, name: dataclasses.replace(self.tensors[name], shape=(*rows, 2 * last))}, **told
        )


def write_shapes(shapes: Mapping[str, tuple[int, ...]], path: Path) -> Path:
    """A safetensors file of such tensors, whose numbers are a hole in the file."""
    header, end = {}, 0
    for name, shape in shapes.items():
        size = 4 * int(torch.Size(shape).numel())
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)
    return path
