"""Write and read a program traced by `torch.export`, with its weights (.pt2).

PyTorch's own reader unpickles, imports and evaluates whatever a file requests. This reader does none of that. A .pt2
file is a zip archive of raw tensors and JSON descriptions; here it may contain only the entries and operations that
vitkit writes. The operations are executed one after another with torch. The archive has a checksum.
"""

from __future__ import annotations

import copy
import json
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vitkit.errors import VitkitError, first_line
from vitkit.exporting import card as seal
from vitkit.exporting.card import CARD
from vitkit.exporting.writing import Refused, reading_back
from vitkit.inference.backends.graph_runner import Array, GraphRunner
from vitkit.model.build import Model, build, classes_and_features
from vitkit.model.layers import InParts
from vitkit.model.network import Network
from vitkit.system.files import from_json

CARD_ENTRY = f"extra/{CARD}.json"
MODEL_ENTRY = "models/model.json"
_ROOT = "archive/"
WEIGHTS, CONSTANTS = "data/weights", "data/constants"
_ENTRIES = re.compile(
    rf"{WEIGHTS}/(weight_\d{{1,6}}|model_weights_config\.json)|{CONSTANTS}/(tensor_\d{{1,6}}|model_constants_config\.json)"
    rf"|{MODEL_ENTRY}|data/sample_inputs/model\.pt|{CARD_ENTRY}|archive_format|archive_version|byteorder"
    r"|\.data/(version|serialization_id)"
)


def read_entries(source: Any) -> dict[str, bytes]:
    """Return the content of each entry of an archive, by name.

    Raises:
        VitkitError: an entry has an unknown name, is compressed, or occurs twice.
        ValueError: the file is not a zip archive, or is damaged.
    """
    try:
        with zipfile.ZipFile(source) as archive:
            entries: dict[str, bytes] = {}
            for info in archive.infolist():
                name = info.filename.removeprefix(_ROOT)
                if not info.filename.startswith(_ROOT) or not _ENTRIES.fullmatch(name) or name in entries:
                    raise VitkitError(
                        f"it is refused for its entry {info.filename[:80]!r}, which vitkit does not write"
                    )
                if info.compress_type != zipfile.ZIP_STORED or info.compress_size != info.file_size:
                    raise VitkitError(f"it is refused for its entry {info.filename[:80]!r}, which is compressed")
                entries[name] = archive.read(info)
            return entries
    except (zipfile.BadZipFile, EOFError, NotImplementedError, OverflowError, OSError, RuntimeError) as error:
        # A negative position raises an OSError, an encrypted entry a RuntimeError.
        raise ValueError(str(error)) from error


def write_entries(entries: Mapping[str, bytes], path: Path) -> None:
    """Write an archive of these entries. Equal entries give identical files."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in entries.items():
            archive.writestr(zipfile.ZipInfo(_ROOT + name), content)


def sealed(entries: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the entries with the checksum of all entries written into the card."""
    return {**entries, CARD_ENTRY: seal.sealed(entries[CARD_ENTRY], *_beside_card(entries))}


def _beside_card(entries: Mapping[str, bytes]) -> list[bytes]:
    """Return the names and contents of all entries except the card, in the order that the checksum uses."""
    others = sorted(entries.keys() - {CARD_ENTRY})
    return [part for name in others for part in (name.encode(), entries[name])]


def check(path: Path, entries: Mapping[str, bytes]) -> None:
    """Check that the entries match the checksum in the card.

    Raises:
        VitkitError: they do not match.
    """
    seal.check(path, entries[CARD_ENTRY], *_beside_card(entries))


_WRITTEN = (
    "_assert_tensor_metadata.default add.Tensor alias.default batch_norm.default cat.default chunk.default "
    "contiguous.default conv2d.default cos.default div.Tensor dropout.default expand.default flatten.using_ints "
    "flip.default gather.default gelu.default index.Tensor neg.default repeat_interleave.self_int sin.default "
    "stack.default "
    "group_norm.default layer_norm.default linear.default matmul.default max_pool2d.default mean.dim mul.Tensor "
    "pad.default permute.default promote_types.default relu.default reshape.default rms_norm.default "
    "scaled_dot_product_attention.default select.int silu.default slice.Tensor std_mean.correction sub.Tensor "
    "sym_size.int t.default tanh.default to.dtype transpose.int unbind.int unflatten.int unsqueeze.default "
    "view.default view_as.default clamp_min.default exp.default expand_as.default linalg_vector_norm.default "
    "arange.default new_zeros.default"
)
_TRACED = (  # in networks of other libraries; none changes its arguments
    "_native_batch_norm_legit.no_stats _native_batch_norm_legit_no_training.default _to_copy.default "
    "_unsafe_view.default adaptive_avg_pool2d.default avg_pool2d.default bitwise_not.default clamp.default "
    "clone.default constant_pad_nd.default conv2d.padding convolution.default cumsum.default div.Tensor_mode "
    "einsum.default elu.default eq.Scalar fill.Scalar hardsigmoid.default hardswish.default hardtanh.default "
    "leaky_relu.default masked_fill.Scalar ne.Scalar pow.Scalar roll.default sigmoid.default slice_scatter.default "
    "softmax.int split.Tensor split_with_sizes.default sqrt.default squeeze.dim sum.dim_IntList var.dim zero.default "
    "zeros.default"
)
_OPERATIONS = frozenset(f"{_WRITTEN} {_TRACED}".split())
_OPERATION = re.compile(r"torch\.ops\.aten\.(\w+)\.(\w+)")
# A symbolic number of images, or a multiple of it (the number of windows or tokens in all images).
_SYMBOL = re.compile(r"s\d+|(Mul\(Integer\(\d+\), )?Symbol\('s\d+', positive=True, integer=True\)(?(1)\))")
# As in torch._export.serde.schema.
_DTYPES = {5: torch.int64, 6: torch.float16, 7: torch.float32, 12: torch.bool, 13: torch.bfloat16}
_MEMORY_FORMATS = {1: torch.contiguous_format, 2: torch.channels_last, 4: torch.preserve_format}
_PLAIN = {"as_int": int, "as_float": float, "as_bool": bool, "as_string": str}


@dataclass(frozen=True)
class ValueName:
    """A reference to the result of an earlier operation, by name."""

    name: str


@dataclass(frozen=True)
class ProgramStep:
    """One operation of a program.

    Attributes:
        operation: the operation of torch.
        arguments, named: positional and keyword arguments; a `ValueName` stands for the result of an earlier step.
        makes: names of the results of the operation.
        frees: names of values that no later step uses, so that they can be deleted.
    """

    operation: Callable[..., Any]
    arguments: tuple[Any, ...]
    named: dict[str, Any]
    makes: tuple[str, ...]
    frees: tuple[str, ...]


@dataclass(frozen=True)
class Program:
    """The computation that a file describes.

    Attributes:
        card: the text of the file's card.
        constants: weights and buffers, by the names that the steps use.
        images: name of the input.
        results: names of the results: the logits, and the features if the model computes them as well.
        steps: the operations, in order.
        batch: the number of images per batch, if it is fixed; None for any number.
        outputs: the number of logits and features.
    """

    card: str
    constants: dict[str, Tensor]
    images: str
    results: tuple[str, ...]
    steps: tuple[ProgramStep, ...]
    batch: int | None
    outputs: int

    def compute(self, images: Tensor) -> Tensor:
        """Compute logits (B, K) of images (B, C, height, width), or logits and features (B, K + D)."""
        values: dict[str, Any] = {**self.constants, self.images: images}
        for step in self.steps:
            made = step.operation(*_filled(step.arguments, values), **_filled(step.named, values))
            if step.makes:
                values.update(zip(step.makes, made if isinstance(made, (list, tuple)) else (made,), strict=True))
            for name in step.frees:
                del values[name]
        return torch.cat([values[name] for name in self.results], dim=1)


def read_program(path: Path) -> Program:
    """Read the program in a file that vitkit wrote.

    Raises:
        VitkitError: the file contains anything else, or is damaged.
    """
    try:
        entries = read_entries(path)
        card = entries[CARD_ENTRY].decode()
        program = _parse(entries, card)
    except VitkitError as error:
        raise VitkitError(
            f"{path} is not a program written by vitkit: {error}; write one with `vitkit export`"
        ) from error
    except (AttributeError, IndexError, KeyError, RecursionError, RuntimeError, TypeError, ValueError) as error:
        raise VitkitError(
            f"{path} cannot be read as an exported program: {first_line(error)}; export it again"
        ) from error
    check(path, entries)
    return program


def _parse(entries: Mapping[str, bytes], card: str) -> Program:
    described = from_json(entries[MODEL_ENTRY])
    _refuse_code(described)
    module = described["graph_module"]
    graph, signature = module["graph"], module["signature"]
    tensors = {
        **_tensors(entries, WEIGHTS, "model_weights_config.json"),
        **_tensors(entries, CONSTANTS, "model_constants_config.json"),
    }
    constants: dict[str, Tensor] = {}
    inputs: list[str] = []
    for spec in signature["input_specs"]:
        ((kind, content),) = spec.items()
        if kind == "user_input":
            inputs.append(content["arg"]["as_tensor"]["name"])
        elif kind in ("parameter", "buffer"):
            constants[content["arg"]["name"]] = tensors[content[f"{kind}_name"]]
        else:
            raise VitkitError(f"it has an input of the kind {kind[:40]!r}")
    (images,) = inputs
    results = tuple(result["as_tensor"]["name"] for result in graph["outputs"])
    values = graph["tensor_values"]
    batch, widths = values[images]["sizes"][0].get("as_int"), [values[name]["sizes"][1]["as_int"] for name in results]
    if not (batch is None or type(batch) is int) or not all(type(width) is int for width in widths):
        raise ValueError("its sizes are not numbers")
    if len(results) not in (1, 2):
        raise ValueError(f"it has {len(results)} results instead of 1 or 2")
    steps = _steps(graph["nodes"], {*results, *constants})
    return Program(card, constants, images, results, steps, batch, sum(widths))


def _refuse_code(described: dict[str, Any]) -> None:
    """Refuse a description with fields that PyTorch's reader would evaluate as code."""
    graph = described["graph_module"]["graph"]
    if described["guards_code"] or graph["custom_obj_values"] or graph["sym_float_values"] or graph["sym_bool_values"]:
        raise VitkitError("it is refused: it contains code or objects, which vitkit does not write")
    for text in _expressions(described):
        if not isinstance(text, str) or not _SYMBOL.fullmatch(text):
            raise VitkitError(f"it is refused: it contains the expression {text!r:.80}, which vitkit does not write")


def _expressions(value: Any) -> Iterator[Any]:
    for key, each in value.items() if isinstance(value, dict) else enumerate(value if isinstance(value, list) else ()):
        if key == "expr_str":
            yield each
        yield from _expressions(each)


def _tensors(entries: Mapping[str, bytes], folder: str, config: str) -> dict[str, Tensor]:
    """Return the tensors that a config file in the archive lists, by their names in the model."""
    tensors = {}
    for name, described in from_json(entries[f"{folder}/{config}"])["config"].items():
        about = described["tensor_meta"]
        if described["use_pickle"] is not False or about["device"]["type"] != "cpu":
            raise VitkitError(f"it is refused: reading {name[:80]!r} in it could run arbitrary code")
        content = bytearray(entries[f"{folder}/{described['path_name']}"])
        sizes, strides = ([_integer(each["as_int"]) for each in about[key]] for key in ("sizes", "strides"))
        flat = torch.frombuffer(content, dtype=_DTYPES[about["dtype"]])
        tensors[name] = flat.as_strided(sizes, strides, _integer(about["storage_offset"]["as_int"]))
    return tensors


def _steps(nodes: Sequence[dict[str, Any]], kept: set[str]) -> tuple[ProgramStep, ...]:
    plans = []
    for node in nodes:
        arguments = tuple(_value(entry["arg"]) for entry in node["inputs"] if entry["kind"] == 1)
        named = {str(entry["name"]): _value(entry["arg"]) for entry in node["inputs"] if entry["kind"] == 2}
        plans.append((_operation(node["target"]), arguments, named, _names(node["outputs"])))
    last: dict[str, int] = {}
    for i, (_, arguments, named, makes) in enumerate(plans):
        for name in (*_reads(arguments), *_reads(tuple(named.values())), *makes):
            last[name] = i
    frees: dict[int, list[str]] = {}
    for name, i in last.items():
        if name not in kept:
            frees.setdefault(i, []).append(name)
    return tuple(ProgramStep(*plan, tuple(frees.get(i, ()))) for i, plan in enumerate(plans))


def _operation(target: str) -> Callable[..., Any]:
    if target == "_operator.mul":
        return _multiply_sizes
    match = _OPERATION.fullmatch(target)
    if match is None or f"{match[1]}.{match[2]}" not in _OPERATIONS:
        raise VitkitError(f"it is refused for its operation {target[:80]!r}, which vitkit does not write")
    operation: Callable[..., Any] = getattr(getattr(torch.ops.aten, match[1]), match[2])
    return partial(_normalise, operation) if match[1].startswith("_native_batch_norm_legit") else operation


def _normalise(operation: Callable[..., Any], x: Tensor, *rest: Any) -> Any:
    """Compute a batch norm, after checking what PyTorch does not: that each statistic has the size of the channels."""
    if any(isinstance(each, Tensor) and each.numel() != x.shape[1] for each in rest):
        raise VitkitError("it is refused: the sizes of a batch norm differ from its number of channels")
    return operation(x, *rest)


def _multiply_sizes(a: Any, b: Any) -> int:
    """Multiply two sizes, such as the number of images and that of the windows in each."""
    if type(a) is not int or type(b) is not int or max(abs(a), abs(b)) >= 1 << 31:
        raise VitkitError("it is refused: it multiplies something other than sizes, which vitkit does not write")
    return a * b


def _value(arg: dict[str, Any]) -> Any:
    """Convert an argument of an operation to a plain value, a `ValueName`, or a list of them."""
    ((kind, content),) = arg.items()
    if kind == "as_none":
        return None
    if kind in _PLAIN:
        if type(content) is not _PLAIN[kind]:
            raise ValueError(f"{content!r} is not of type {kind.removeprefix('as_')}")
        return content
    if kind in ("as_ints", "as_floats"):
        return [_value({kind.removesuffix("s"): each}) for each in content]
    if kind == "as_tensor":
        return ValueName(str(content["name"]))
    if kind == "as_tensors":
        return [ValueName(str(each["name"])) for each in content]
    if kind == "as_sym_int":
        return ValueName(str(content["as_name"])) if "as_name" in content else _integer(content["as_int"])
    if kind == "as_sym_ints":
        return [_value({"as_sym_int": each}) for each in content]
    if kind == "as_scalar_type":
        return _DTYPES[content]
    if kind == "as_device":
        return torch.device("cpu")
    if kind == "as_memory_format":
        return _MEMORY_FORMATS[content]
    if kind == "as_layout":
        return torch.strided
    raise VitkitError(f"it has an argument of the kind {kind[:40]!r}")


def _names(outputs: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    names: list[str] = []
    for output in outputs:
        ((kind, content),) = output.items()
        if kind == "as_tensor":
            names.append(str(content["name"]))
        elif kind == "as_tensors":
            names += [str(each["name"]) for each in content]
        elif kind == "as_sym_int":
            names.append(str(content["as_name"]))
        elif kind != "as_none":
            raise VitkitError(f"it has a result of the kind {kind[:40]!r}")
    return tuple(names)


def _reads(values: Sequence[Any]) -> list[str]:
    return [name for each in values for name in ([each.name] if isinstance(each, ValueName) else _within(each))]


def _within(value: Any) -> list[str]:
    return _reads(value) if isinstance(value, list) else []


def _filled(value: Any, values: Mapping[str, Any]) -> Any:
    """Replace the `ValueName`s in an argument by their values."""
    if isinstance(value, ValueName):
        return values[value.name]
    if isinstance(value, dict):
        return {key: _filled(each, values) for key, each in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)(_filled(each, values) for each in value)
    return value


def _integer(value: Any) -> int:
    if type(value) is not int:
        raise ValueError(f"{value!r} is not a whole number")
    return value


class ProgramRunner(GraphRunner):
    """A runner of a traced program, which computes in the dtype of its weights."""

    backend = "eager"

    def __init__(self, program: Program) -> None:
        self._program = program
        weights = (tensor for tensor in program.constants.values() if tensor.is_floating_point())
        self.precision = str(next(weights).dtype).removeprefix("torch.")
        self.batch, self.outputs = program.batch, program.outputs

    @torch.inference_mode()
    def _run(self, images: Array) -> Array:
        logits: Array = self._program.compute(torch.from_numpy(images)).numpy()
        return logits


class _InNumbersOf(nn.Module):
    """A model in another dtype, whose input and outputs stay float32."""

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.model, self.dtype = model, dtype

    def forward(self, images: Tensor) -> Tensor | tuple[Tensor, ...]:
        computed = self.model(images.to(self.dtype))
        return computed.float() if isinstance(computed, Tensor) else tuple(part.float() for part in computed)


def write(model: Model, path: Path, card: str, batch: int | None, dtype: torch.dtype) -> None:
    """Trace a model and write it; see `Format.write`.

    Raises:
        Refused: PyTorch's reader and the reader of vitkit compute different logits from the file, or the reader of
            vitkit does not accept the file.
        VitkitError: `torch.export` cannot trace the model.
        OSError: the disk is full or not writable.
    """
    config, copied = model.config, _copy_of(model).to(dtype)
    parts = InParts(copied) if classes_and_features(model)[1] else copied
    wrapped = _InNumbersOf(parts, dtype).eval().requires_grad_(requires_grad=False)
    example = torch.zeros(batch or 2, config.in_channels, *config.image_size)
    sizes = None if batch else ({0: torch.export.Dim("batch")},)
    try:
        program = torch.export.export(wrapped, (example,), dynamic_shapes=sizes, strict=False)
    except (RuntimeError, ValueError, TypeError) as error:
        raise VitkitError(
            f"torch.export cannot trace the model: {first_line(error)}; try another format, such as .onnx"
        ) from error
    if isinstance(copied, Network):
        program = program.run_decompositions({})  # into operations that change nothing in place
    buffer = BytesIO()
    torch.export.save(program, buffer, extra_files={CARD_ENTRY.removeprefix("extra/"): card})
    entries = read_entries(buffer)
    entries[MODEL_ENTRY] = _without_traces(entries[MODEL_ENTRY])
    write_entries(sealed(entries), path)
    _read_as_torch_does(path, torch.rand_like(example))


def _copy_of(model: Model) -> Model:
    """Return a copy of the model. Hooks are copied only if the model also computes features."""
    if classes_and_features(model)[1]:
        return copy.deepcopy(model)
    copied = build(model.config)
    copied.load_state_dict(model.state_dict())
    return copied


def _without_traces(model: bytes) -> bytes:
    """Remove the source locations of operations from the description, since they contain local paths."""
    described = from_json(model)
    for node in described["graph_module"]["graph"]["nodes"]:
        node["metadata"].pop("stack_trace", None)
    return json.dumps(described).encode()


@torch.inference_mode()
def _read_as_torch_does(path: Path, images: Tensor) -> None:
    """Check that PyTorch's own reader computes exactly the same logits from the file as vitkit's reader.

    Raises:
        Refused: the logits differ, or vitkit's reader does not accept the file.
    """
    theirs = torch.export.load(path).module()(images)
    whole = theirs if isinstance(theirs, Tensor) else torch.cat(theirs, dim=1)
    with reading_back(path.suffix):
        program = read_program(path)
    if not torch.equal(whole, program.compute(images)):
        raise Refused(f"PyTorch computes other logits from {path.name} than vitkit")


def open_file(path: Path, precision: str) -> tuple[ProgramRunner, str]:
    """Return a runner for a file, and the text of the file's card.

    Args:
        path: the file.
        precision: the precision of the file; `auto` accepts any precision.

    Raises:
        VitkitError: the file is damaged or was not written by vitkit, or it computes in another precision.
    """
    program = read_program(path)
    runner = ProgramRunner(program)
    if precision not in ("auto", runner.precision):
        raise VitkitError(f"{path} computes in {runner.precision}: use --precision {runner.precision}, or auto")
    return runner, program.card
