"""Write a program for ExecuTorch (.pte), PyTorch's runtime for phones and small computers, and open it.

Layers run by XNNPACK, on processors. Vitkit's card is a constant method of the program, `vitkit`, so an app reads the
class names and the preprocessing from the same file. Before the runtime opens a program, its checksum is verified, and
the runtime checks the consistency of the file; this detects damaged files, but not forged ones (decision 0014).
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitkit.errors import VitkitError, first_line
from vitkit.exporting.card import CARD, check_checksum, with_checksum
from vitkit.exporting.formats import INT8
from vitkit.inference.backends.graph_runner import GraphRunner

if TYPE_CHECKING:
    from torch.export import ExportedProgram

    from vitkit.exporting.formats import Storage
    from vitkit.model.build import Model


def convert(model: Model, storage: Storage) -> Any:
    """Convert a model; see `Format.convert`."""
    from vitkit.inference.backends.graphs import converter_input, converting, traced

    module, images, *_ = converter_input(model, 1, storage.pixels)
    with converting(model):
        from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
        from executorch.exir import to_edge_transform_and_lower

        program = traced(module, images)
        if storage.precision == INT8:
            program = _quantized(program, images, storage.keep)
        return to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()])


def _quantized(program: ExportedProgram, images: Any, keep: tuple[str, ...]) -> ExportedProgram:
    """Quantise linear layers: weights per output channel, and the tokens of an image at run time."""
    from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import (
        XNNPACKQuantizer,
        get_symmetric_quantization_config,
    )
    from torch.fx import GraphModule
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    from vitkit.inference.backends.graphs import traced

    def is_quantized(node: Any) -> bool:
        modules = {name for name, _ in node.meta.get("nn_module_stack", {}).values()}
        return modules.isdisjoint(keep)

    quantizer = XNNPACKQuantizer().set_global(get_symmetric_quantization_config(is_per_channel=True, is_dynamic=True))
    prepared = prepare_pt2e(program.module(), quantizer.set_filter_function(is_quantized))
    prepared(images)
    converted = convert_pt2e(prepared)
    # A program also stores buffers that are not used. `GraphModule` keeps only those that the graph uses.
    return traced(GraphModule(converted, converted.graph), images)


def save(graph: Any, path: Path, card: str) -> None:
    """Write a converted model; see `Format.save`."""
    from executorch.exir import EdgeProgramManager

    from vitkit.inference.backends.graphs import quietly

    with quietly():
        # Copies, because `to_executorch` changes the programs, and `save` may be called again.
        programs = {name: copy.deepcopy(graph.exported_program(name)) for name in graph.methods}
        program = EdgeProgramManager(programs, {CARD: card}, graph.compile_config).to_executorch()
    path.write_bytes(with_checksum(bytes(program.buffer)))


def open_file(path: Path, precision: str) -> tuple[GraphRunner, str]:
    """Open a program; see `Format.open`."""
    from vitkit.inference.backends.executorch import from_file

    check_checksum(path, path.read_bytes())
    runner = from_file(path, precision)
    try:
        return runner, str(runner.constant(CARD))
    except RuntimeError as error:
        reason = f"{path} is not a program written by vitkit: {first_line(error)}; write one with `vitkit export`"
        raise VitkitError("exporting.file-foreign", reason) from error
