"""PyTorch's own format: the program that `torch.export` traces, with its weights and without our classes (.pt2)."""

from __future__ import annotations

import json
from io import BytesIO
from pathlib import Path

import torch
from torch import Tensor, nn

from vitkit.errors import VitkitError, first_line
from vitkit.exporting import program_archive, program_file
from vitkit.exporting.check import Refused
from vitkit.inference.backends.graph_runner import Array, GraphRunner
from vitkit.model.build import Model, build
from vitkit.model.network import Network
from vitkit.system.files import from_json


class ProgramRunner(GraphRunner):
    """A traced program, which computes in the numbers that it was written with."""

    backend = "eager"

    def __init__(self, program: program_file.Program) -> None:
        self._program = program
        weights = (tensor for tensor in program.constants.values() if tensor.is_floating_point())
        self.precision = str(next(weights).dtype).removeprefix("torch.")
        self.batch, self.outputs = program.batch, program.outputs

    @torch.inference_mode()
    def _run(self, images: Array) -> Array:
        logits: Array = self._program.compute(torch.from_numpy(images)).numpy()
        return logits


class _InNumbersOf(nn.Module):
    """A model whose inputs and outputs stay float32."""

    def __init__(self, model: Model, dtype: torch.dtype) -> None:
        super().__init__()
        self.model, self.dtype = model, dtype

    def forward(self, images: Tensor) -> Tensor:
        return self.model(images.to(self.dtype)).float()


def write(model: Model, path: Path, card: str, batch: int | None, dtype: torch.dtype) -> None:
    """Trace the model and write it. With `batch` it takes no other number of images; else any.

    Raises:
        Refused: PyTorch reads the file otherwise than vitkit does.
        OSError: the disk is full or not writable.
    """
    config = model.config
    own = build(config)
    own.load_state_dict(model.state_dict())
    wrapped = _InNumbersOf(own.to(dtype), dtype).eval().requires_grad_(requires_grad=False)
    example = torch.zeros(batch or 2, config.in_channels, *config.image_size)
    sizes = None if batch else ({0: torch.export.Dim("batch")},)
    try:
        program = torch.export.export(wrapped, (example,), dynamic_shapes=sizes, strict=False)
    except (RuntimeError, ValueError, TypeError) as error:
        raise VitkitError(f"torch.export cannot trace the model: {first_line(error)}") from error
    if isinstance(own, Network):
        program = program.run_decompositions({})  # into operations that change nothing in place
    buffer = BytesIO()
    torch.export.save(program, buffer, extra_files={program_archive.CARD_ENTRY.removeprefix("extra/"): card})
    entries = program_archive.read_entries(buffer)
    entries[program_archive.MODEL_ENTRY] = _without_traces(entries[program_archive.MODEL_ENTRY])
    program_archive.write_entries(program_archive.sealed(entries), path)
    _read_as_torch_does(path, torch.rand_like(example))


def _without_traces(model: bytes) -> bytes:
    """The program without the lines of source that each operation comes from, which name folders of this machine."""
    described = from_json(model)
    for node in described["graph_module"]["graph"]["nodes"]:
        node["metadata"].pop("stack_trace", None)
    return json.dumps(described).encode()


@torch.inference_mode()
def _read_as_torch_does(path: Path, images: Tensor) -> None:
    """Whether PyTorch's reader, which the file is for, makes the same of it; vitkit itself has just written it."""
    theirs = torch.export.load(path).module()(images)
    if not torch.equal(theirs, program_file.read_program(path).compute(images)):
        raise Refused(f"PyTorch answers otherwise than vitkit when it reads {path.name}")


def open_file(path: Path, precision: str) -> tuple[ProgramRunner, str]:
    """A runner of a file, and its card; precision `auto` is its own.

    Raises:
        VitkitError: the file is damaged or not by vitkit, or computes in another precision.
    """
    program = program_file.read_program(path)
    runner = ProgramRunner(program)
    if precision not in ("auto", runner.precision):
        raise VitkitError(f"{path} computes in {runner.precision}: take --precision {runner.precision}, or auto")
    return runner, program.card
