"""An OpenVINO model (.xml beside its .bin): written with its card, and opened by OpenVINO without PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from vitkit.exporting import screen_openvino, seal
from vitkit.inference.backends.graph_runner import GraphRunner
from vitkit.inference.backends.openvino import from_file, graph_of
from vitkit.inference.backends.openvino_package import import_openvino

if TYPE_CHECKING:
    import torch

    from vitkit.model.build import Model


def write(model: Model, path: Path, card: str, batch: int | None, dtype: torch.dtype) -> None:
    """As `Format.write`."""
    graph = graph_of(model, batch, dtype)
    graph.set_rt_info(card, [seal.CARD])
    try:
        import_openvino().serialize(graph, path, path.with_suffix(".bin"))
    except RuntimeError as error:  # how OpenVINO reports a full disk
        raise OSError(f"cannot write {path}: is the disk full?") from error
    path.write_bytes(seal.sealed(path.read_bytes(), path.with_suffix(".bin").read_bytes()))


def open_file(path: Path, precision: str) -> tuple[GraphRunner, str]:
    """As `Format.open`."""
    card = screen_openvino.read_card(path)
    return from_file(path, precision), card
