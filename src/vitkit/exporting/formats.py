"""The formats: how a model with its card is written, and read and run by the format's own runtime."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from vitkit.errors import VitkitError
from vitkit.exporting import program, screen_onnx, screen_openvino, seal
from vitkit.inference.backends import onnx as onnx_backend
from vitkit.inference.backends import openvino as openvino_backend
from vitkit.inference.backends.graph_builder import CARD
from vitkit.inference.backends.graph_runner import GraphRunner
from vitkit.model.vit import VisionTransformer

DTYPES: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


@dataclass(frozen=True)
class Format:
    """One way to keep a model.

    Attributes:
        suffix: of its file.
        beside: suffixes of the files that belong to it.
        backend: the name of its runtime among `BACKENDS`.
        write: model, path, text of the card, only batch or None, dtype of the weights.
        open: a runner of a file in a precision, `auto` included, and the text of its card; a file that holds anything
            but what `write` writes is refused before its runtime sees it.
    """

    suffix: str
    backend: str
    write: Callable[[VisionTransformer, Path, str, int | None, torch.dtype], None]
    open: Callable[[Path, str], tuple[GraphRunner, str]]
    beside: tuple[str, ...] = ()

    def files(self, path: Path) -> list[Path]:
        """All files of the model at a path, the one of that path last."""
        return [*(path.with_suffix(suffix) for suffix in self.beside), path]


def _write_onnx(model: VisionTransformer, path: Path, card: str, batch: int | None, dtype: torch.dtype) -> None:
    graph = onnx_backend.to_graph(model, batch, dtype)
    entry = graph.metadata_props.add()
    entry.key, entry.value = CARD, card
    content = graph.SerializeToString()
    path.write_bytes(seal.sealed(content, start=content.rindex(card.encode())))


def _open_onnx(path: Path, precision: str) -> tuple[GraphRunner, str]:
    card = screen_onnx.read_card(path)
    return onnx_backend.from_file(path, precision), card


def _write_openvino(model: VisionTransformer, path: Path, card: str, batch: int | None, dtype: torch.dtype) -> None:
    graph = openvino_backend.to_graph(model, batch, dtype)
    graph.set_rt_info(card, [CARD])
    try:
        openvino_backend.import_openvino().serialize(graph, path, path.with_suffix(".bin"))
    except RuntimeError as error:  # how OpenVINO reports a full disk
        raise OSError(f"cannot write {path}: is the disk full?") from error
    path.write_bytes(seal.sealed(path.read_bytes(), path.with_suffix(".bin").read_bytes()))


def _open_openvino(path: Path, precision: str) -> tuple[GraphRunner, str]:
    card = screen_openvino.read_card(path)
    return openvino_backend.from_file(path, precision), card


FORMATS: dict[str, Format] = {
    "onnx": Format(
        suffix=".onnx",
        backend="onnx",
        write=_write_onnx,
        open=_open_onnx,
    ),
    "openvino": Format(
        suffix=".xml",
        beside=(".bin",),
        backend="openvino",
        write=_write_openvino,
        open=_open_openvino,
    ),
    "torch": Format(
        suffix=".pt2",
        backend="eager",
        write=program.write,
        open=program.from_file,
    ),
}
SUFFIXES = tuple(form.suffix for form in FORMATS.values())


def format_of(path: Path) -> Format:
    """The format of a file, by its suffix.

    Raises:
        VitkitError: it is none of them.
    """
    for form in FORMATS.values():
        if path.suffix.lower() == form.suffix:
            return form
    raise VitkitError(f"{path} must end in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}")
