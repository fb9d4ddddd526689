"""Files of which a tensor is missing, has another shape or has no numbers."""

import dataclasses
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vitkit.weights import StoredTensor
from vitkit.weights.loading import LoadPlan, inspect_source

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from published import write_shapes  # in that folder

__all__ = ["Spoilt", "write_shapes"]


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
