"""An ONNX file: written with its card, and opened by ONNX Runtime without PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from vitkit.exporting import screen_onnx, seal
from vitkit.inference.backends.graph_runner import GraphRunner
from vitkit.inference.backends.onnx import from_file, graph_of

if TYPE_CHECKING:
    import torch

    from vitkit.model.build import Model


def write(model: Model, path: Path, card: str, batch: int | None, dtype: torch.dtype) -> None:
    """As `Format.write`."""
    graph = graph_of(model, batch, dtype)
    entry = graph.metadata_props.add()
    entry.key, entry.value = seal.CARD, card
    content = graph.SerializeToString()
    path.write_bytes(seal.sealed(content, start=content.rindex(card.encode())))


def open_file(path: Path, precision: str) -> tuple[GraphRunner, str]:
    """As `Format.open`."""
    card = screen_onnx.read_card(path)
    return from_file(path, precision), card
