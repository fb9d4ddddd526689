"""Write a program traced by `torch.export`, with its weights (.pt2).

PyTorch's reader unpickles, imports and evaluates whatever a file requests. Therefore vitkit writes and checks such
files, but does not open those of users.
"""

from __future__ import annotations

import copy
from io import BytesIO
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from vitkit.exporting.card import CARD
from vitkit.exporting.formats import Storage
from vitkit.inference.backends.graph_runner import Array, GraphRunner, output_names
from vitkit.inference.backends.graphs import converting, example, traced
from vitkit.model.build import Model, build, classes_and_features
from vitkit.model.layers import LogitsAndFeatures
from vitkit.system.files import from_json, to_json

_CARD_FILE = f"{CARD}.json"  # among the archive's extra files


class _ProgramRunner(GraphRunner):
    """A runner of a traced program, which computes in the dtype of its weights."""

    backend = "eager"

    def __init__(self, program: ExportedProgram, precision: str) -> None:
        signature = program.graph_signature
        values = {node.name: node.meta.get("val") for node in program.graph.nodes}  # tensors that have only shapes
        batch = values[signature.user_inputs[0]].shape[0]
        self.batch = batch if isinstance(batch, int) else None
        self.outputs = sum(values[name].shape[1] for name in signature.user_outputs)
        self.precision = precision
        self._module = program.module()

    @torch.inference_mode()
    def _run(self, images: Array) -> dict[str, Array]:
        outputs = self._module(torch.from_numpy(images))  # the logits, or a tuple of logits and features
        if isinstance(outputs, Tensor):
            outputs = (outputs,)
        names = output_names(len(outputs), takes_pixels=False)
        return {name: output.numpy() for name, output in zip(names, outputs, strict=True)}


class _InDtype(nn.Module):
    """A model in another dtype, whose input and outputs stay float32."""

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.model = model
        self.dtype = dtype

    def forward(self, images: Tensor) -> Tensor | tuple[Tensor, ...]:
        computed = self.model(images.to(self.dtype))
        return computed.float() if isinstance(computed, Tensor) else tuple(part.float() for part in computed)


def convert(model: Model, storage: Storage) -> ExportedProgram:
    """Trace a model; see `Format.convert`."""
    dtype = getattr(torch, storage.precision)
    classes, features = classes_and_features(model)
    if features:  # a new model would not have the hooks that return the features
        copied = copy.deepcopy(model)
    else:
        copied = build(model.config)
        copied.load_state_dict(model.state_dict())
    module: nn.Module = LogitsAndFeatures(copied, classes) if features else copied
    wrapped = _InDtype(module.to(dtype), dtype).eval().requires_grad_(requires_grad=False)
    with converting(model):
        return traced(wrapped, example(model, storage.batch), storage.batch)


def save(graph: ExportedProgram, path: Path, card: str) -> None:
    """Write a traced model; see `Format.save`."""
    fields = from_json(card)
    del fields["checksum"]  # vitkit does not open such files, so nothing would check it
    content = BytesIO()
    torch.export.save(graph, content, extra_files={_CARD_FILE: to_json(fields)})
    path.write_bytes(content.getbuffer())


def open_file(path: Path, precision: str) -> tuple[GraphRunner, str]:
    """Open a program that `save` has just written; see `Format.open`."""
    extra = {_CARD_FILE: ""}
    program = torch.export.load(path, extra_files=extra)
    return _ProgramRunner(program, precision), extra[_CARD_FILE]
