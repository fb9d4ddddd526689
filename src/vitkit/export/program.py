"""PyTorch's own format: the traced program of `torch.export` with its weights (.pt2), without the classes it came from.

The format may hold pickled objects, which can run anything when they are read. Ours hold none, and a file that does is
refused.
"""

from __future__ import annotations

import json
import warnings
import zipfile
from io import BytesIO
from pathlib import Path
from pickle import UnpicklingError

import torch
from torch import Tensor, nn

from vitkit.engine.graph import CARD
from vitkit.engine.runner import GraphRunner
from vitkit.errors import VitkitError
from vitkit.model import VisionTransformer

_ENTRY = f"{CARD}.json"


class ProgramRunner(GraphRunner):
    """A traced program, which computes in the numbers that it was written with."""

    engine = "eager"

    def __init__(self, program: torch.export.ExportedProgram, card: str | None) -> None:
        self.card = card
        self._compute = program.module()
        self.precision = str(next(iter(program.state_dict.values())).dtype).removeprefix("torch.")
        size = next(node.meta["val"].shape[0] for node in program.graph.nodes if node.name in _inputs(program))
        self.batch = size if isinstance(size, int) else None

    @torch.inference_mode()
    def _run(self, images: Tensor) -> Tensor:
        return self._compute(images)


class _InNumbersOf(nn.Module):
    """A model whose inputs and outputs stay float32."""

    def __init__(self, model: VisionTransformer, dtype: torch.dtype) -> None:
        super().__init__()
        self.model, self.dtype = model, dtype

    def forward(self, images: Tensor) -> Tensor:
        return self.model(images.to(self.dtype)).float()


def write(model: VisionTransformer, path: Path, card: str, batch: int | None, dtype: torch.dtype) -> None:
    """Trace the model and write it. With `batch` it takes no other number of images; else any.

    Raises:
        OSError: the disk is full or not writable.
    """
    config = model.config
    own = VisionTransformer(config)
    own.load_state_dict(model.state_dict())
    wrapped = _InNumbersOf(own.to(dtype), dtype).eval().requires_grad_(requires_grad=False)
    example = torch.zeros(batch or 2, config.in_channels, *config.image_size)
    sizes = None if batch else ({0: torch.export.Dim("batch")},)
    program = torch.export.export(wrapped, (example,), dynamic_shapes=sizes, strict=False)
    buffer = BytesIO()  # torch would end the process where a disk is full
    torch.export.save(program, buffer, extra_files={_ENTRY: card})
    path.write_bytes(buffer.getbuffer())


def from_file(path: Path, precision: str) -> ProgramRunner:
    """A runner of a file; precision `auto` is its own.

    Raises:
        VitkitError: the file is damaged or holds pickled objects, or computes in another precision.
    """
    _check_harmless(path)
    try:
        files = {_ENTRY: ""}
        runner = ProgramRunner(torch.export.load(path, extra_files=files), files[_ENTRY] or None)
    except (KeyError, RuntimeError, StopIteration, ValueError) as error:
        raise VitkitError(f"{path} is no program that can be read: {str(error).splitlines()[0]}") from error
    if precision not in ("auto", runner.precision):
        raise VitkitError(f"{path} computes in {runner.precision}: take --precision {runner.precision}, or auto")
    return runner


def _inputs(program: torch.export.ExportedProgram) -> tuple[str, ...]:
    return program.graph_signature.user_inputs


def _check_harmless(path: Path) -> None:
    """Whether reading it runs nothing: `torch.export.load` unpickles whatever the archive calls pickled."""
    try:
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                if not _is_harmless(archive, name):
                    raise VitkitError(f"{path} is refused: reading {name} in it could run anything")
    except (zipfile.BadZipFile, ValueError) as error:
        raise VitkitError(f"{path} is no program that can be read: {error}") from error


def _is_harmless(archive: zipfile.ZipFile, name: str) -> bool:
    inside = name.partition("/")[2]
    if inside.startswith("data/aotinductor/"):
        return False
    if inside.startswith("data/") and inside.endswith("_config.json"):
        payloads = json.loads(archive.read(name))["config"].values()
        return not any(payload["use_pickle"] for payload in payloads)
    if inside.startswith("data/sample_inputs/"):
        try:
            with warnings.catch_warnings(action="ignore"):  # at pickles that are not torch's
                torch.load(BytesIO(archive.read(name)), weights_only=True)
        except (UnpicklingError, RuntimeError):
            return False
    return True
