"""Read checkpoints without running code: first names and shapes, then values when they are needed.

The format of a file is recognised by its content: safetensors, PyTorch (read with `weights_only`), or numpy's `.npz`.
An `.npz` file is refused before it is decompressed if the size of an array does not match its shape.

vitkit embeds data in a zip file before the central directory, where readers of zip files skip it. (Signatures of
Android packages are stored in the same way.) The data are not stored as a zip member, because programs that load all
arrays of an `.npz` file would read it as an extra array. They are not stored in the comment of the zip file either,
because a comment is limited to 64 KiB.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import pickle
import re
import struct
import warnings
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from vitkit.data.seen import decode_record
from vitkit.errors import VitkitError, first_line
from vitkit.system.files import from_json
from vitkit.text.cells import listed

# Words before the names of a model's tensors: of wrappers, and of attributes that hold a model within another.
_PREFIX = re.compile(
    r"(?:(?:module|backbone|model|net|teacher|student|_forward_module|ema_model|model_ema|ema|averaged_model"
    r"|swa_model)\.)+"
)
_INNER_WRAPPER = re.compile(r"(?:(?<=\.)|^)(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")
_TRAINING_ONLY = re.compile(
    r"n_averaged$|(?:criterion|criterions|loss|losses|loss_fn|loss_func|loss_function|optimizer|scheduler|metrics?"
    r"|(?:train|val|valid|test)_(?:acc|accuracy|f1|loss|metrics?))\."
)


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file: its shape and dtype are known, and `read` reads its values when they are needed."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    read: Callable[[], Tensor]


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """The content of a file or folder of weights.

    Attributes:
        path: the path of the file or folder.
        tensors: the tensors by name, without wrappers and prefixes.
        wrappers: the nested keys of the file under which the weights were stored, such as `model`.
        config: the content of `config.json` (or OpenCLIP's file) next to the weights.
        preprocessor: the settings of transformers' image processor next to the weights.
        metadata: the metadata of a safetensors file, or the sections that vitkit stored in the comment of an `.npz`.
        ignored: other sets of weights in the file, each with the reason why it was not chosen.
        pictures: the record of the pictures that the weights were trained on (`data.seen`), if vitkit wrote the file.
    """

    path: Path
    tensors: Mapping[str, StoredTensor]
    wrappers: tuple[str, ...] = ()
    config: Mapping[str, Any] | None = None
    preprocessor: Mapping[str, Any] | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    ignored: Mapping[str, str] = field(default_factory=dict)
    pictures: bytes | None = None


def readers(
    tensors: Mapping[str, StoredTensor],
    parts: Mapping[str, tuple[Sequence[str], Callable[..., Tensor]]] | None = None,
) -> dict[str, Callable[[], Tensor]]:
    """Return a function for each tensor that reads its parts from the file and joins them.

    The functions return float32 or integers in new memory, because the file may change later. `parts` has, for each
    resulting tensor, the names of its parts and the function that joins them. If it is None, each tensor of the
    checkpoint is read under its name.
    """

    def reader(stored: Sequence[StoredTensor], join: Callable[..., Tensor]) -> Callable[[], Tensor]:
        def read() -> Tensor:
            values = [tensor.read() for tensor in stored]
            joined = join(*values)
            result = (joined.float() if joined.is_floating_point() else joined).contiguous()
            mapped = {value.untyped_storage().data_ptr() for value in values}  # memory that may be that of the file
            return result.clone() if result.untyped_storage().data_ptr() in mapped else result

        return read

    if parts is None:
        return {name: reader([tensor], lambda value: value) for name, tensor in tensors.items()}
    return {name: reader([tensors[part] for part in names], join) for name, (names, join) in parts.items()}


def stored_note(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the note that vitkit's export stored with the tensors: configuration, preprocessing, image size, classes.

    The dictionary is empty if there is no such note.
    """
    if "vitkit" not in checkpoint.metadata:
        return {}
    stored = from_json(checkpoint.metadata["vitkit"])
    preprocess = stored["preprocess"].items()
    note: dict[str, Any] = {
        "fields": {**stored["config"], "patch_size": tuple(stored["patch_size"])},
        "preprocess": {name: tuple(value) if isinstance(value, list) else value for name, value in preprocess},
        "image_size": tuple(stored["image_size"]),
    }
    if "classes" in stored:
        note["classes"] = tuple(stored["classes"])
    return note


def without_prefixes(tensors: Mapping[str, StoredTensor], path: Path) -> tuple[dict[str, StoredTensor], dict[str, str]]:
    """Remove the prefixes that wrappers put before names (data parallel, torch.compile, a model within a model).

    Also return what is left out, with the reasons: tensors that only training needs, and other sets of weights with
    other prefixes. If two names become the same, the set with the better rank is taken (`_rank`); at equal rank, an
    error is raised.
    """

    def ambiguous(name: str) -> VitkitError:
        return VitkitError(
            "weights.sets-ambiguous",
            f"{path} contains {name} under several prefixes, and it is not clear which one to use: save only one of "
            "them",
        )

    sets: dict[str, dict[str, StoredTensor]] = {}  # the tensors with each prefix, by their names without it
    ignored: dict[str, str] = {}
    for name, tensor in tensors.items():
        bare = _INNER_WRAPPER.sub("", name)
        match = _PREFIX.match(bare)
        prefix = match[0] if match else ""
        bare = bare.removeprefix(prefix)
        if _TRAINING_ONLY.match(bare):
            ignored[name] = "it belongs to the training"
        elif bare in sets.setdefault(prefix, {}):
            raise ambiguous(bare)
        else:
            sets[prefix][bare] = tensor

    merged: dict[str, StoredTensor] = {}
    chosen: list[str] = []  # the prefixes of the sets that were merged, with increasing ranks
    for prefix in sorted(sets, key=_rank):
        same = merged.keys() & sets[prefix].keys()
        if not same:
            merged |= sets[prefix]
            chosen.append(prefix)
        elif _rank(chosen[-1]) < _rank(prefix):
            ignored[_set_name(prefix)] = f"{_set_name(chosen[0])} was taken"
        else:
            raise ambiguous(min(same))
    in_file_order = [name for tensors_of_set in sets.values() for name in tensors_of_set]
    return {name: merged[name] for name in in_file_order if name in merged}, ignored


def _set_name(prefix: str) -> str:
    return prefix.rstrip(".") or "the set without a prefix"


def _rank(name: str) -> int:
    """Return the rank of a set of weights, the lowest is preferred: averaged weights, a teacher, others, a student."""
    words = set(re.split(r"[._]", name.lower()))
    if words & {"ema", "swa", "averaged", "average", "avg", "polyak"}:
        return 0
    if words & {"teacher", "target"}:
        return 1
    return 3 if "student" in words else 2


_TRAILER = struct.Struct("<Q16s")  # follows the embedded bytes: their number, and a name that identifies them
_TRAILER_NAME = b"vitkit pictures\n"


def embed_in_zip(path: Path, data: bytes, comment: bytes | None = None) -> None:
    """Embed bytes, if there are any, in a zip file, and replace the comment of the file unless `comment` is None."""
    with zipfile.ZipFile(path, "a") as archive:
        assert archive.fp is not None
        if data:
            archive.fp.seek(archive.start_dir)
            archive.fp.write(data + _TRAILER.pack(len(data), _TRAILER_NAME))
            archive.start_dir = archive.fp.tell()
        # Setting the comment, even to the old one, makes zipfile write the directory again, after the data.
        archive.comment = archive.comment if comment is None else comment


def embedded_in_zip(path: Path) -> bytes | None:
    """Return the bytes that `embed_in_zip` embedded in a zip file; None if there are none."""
    with zipfile.ZipFile(path) as archive:
        start = archive.start_dir
    with path.open("rb") as file:
        end = start - _TRAILER.size  # of the embedded bytes
        if end < 0:
            return None
        file.seek(end)
        size, name = _TRAILER.unpack(file.read(_TRAILER.size))
        if name != _TRAILER_NAME or size > end:
            return None
        file.seek(end - size)
        return file.read(size)


def _damaged(path: Path, why: object) -> VitkitError:
    return VitkitError("weights.file-damaged", f"{path} is damaged: {why}; restore it or download it again")


_NPY_TYPES = {
    np.dtype(np.float32): torch.float32,
    np.dtype(np.float16): torch.float16,
    np.dtype(np.float64): torch.float64,
    np.dtype("V2"): torch.bfloat16,  # as in big_vision's files, since numpy has no bfloat16
}


def read_npz(path: Path) -> Checkpoint:
    """Read the headers of an .npz file. An array is decompressed only when it is needed."""
    try:
        archive = zipfile.ZipFile(path)
        members = [member for member in archive.infolist() if member.filename.endswith(".npy")]
        tensors = {member.filename.removesuffix(".npy"): _npz_tensor(archive, member, path) for member in members}
    except (zipfile.BadZipFile, ValueError, EOFError, OSError, NotImplementedError) as error:
        raise _damaged(path, error) from error
    try:
        comment = from_json(archive.comment)
    except ValueError:
        comment = None
    sections = comment if isinstance(comment, dict) else {}  # what vitkit's export stored, by name
    metadata = {name: json.dumps(value) for name, value in sections.items()}
    return Checkpoint(path=path, tensors=tensors, metadata=metadata, pictures=embedded_in_zip(path))


def _npz_tensor(archive: zipfile.ZipFile, member: zipfile.ZipInfo, path: Path) -> StoredTensor:
    with archive.open(member) as stream:
        version = np.lib.format.read_magic(stream)
        read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read_header(stream)
        header_size = stream.tell()
    if dtype.hasobject:
        raise VitkitError(
            "weights.code-refused",
            f"{path}: {member.filename} contains Python objects, which could run code; it is not read: "
            "save it as an array of numbers",
        )
    if header_size + math.prod(shape) * dtype.itemsize != member.file_size:
        raise _damaged(path, f"{member.filename} is not as large as its shape {shape} says")

    def read() -> Tensor:
        try:
            with archive.open(member) as stream:
                array: Any = np.lib.format.read_array(stream, allow_pickle=False)
        except (zipfile.BadZipFile, EOFError, ValueError) as error:
            raise _damaged(path, error) from error
        if dtype == np.dtype("V2"):  # bfloat16, see `_NPY_TYPES`
            return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(array)

    return StoredTensor(shape, _NPY_TYPES.get(dtype, torch.int64), read)


PICTURES = "vitkit_pictures"  # the key of the record in a safetensors file's metadata
# Tensors of all other types are recorded as int64: they are not used as weights.
_SAFE_TYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def read_safetensors(path: Path, *, full_names: bool = False) -> Checkpoint:
    """Read the header of a safetensors file. Values are read when they are needed."""
    try:
        file: Any = safe_open(path, framework="pt")
        tensors: dict[str, StoredTensor] = {}
        for name in file.keys():  # noqa: SIM118  # the file is not a mapping
            view = file.get_slice(name)
            dtype = _SAFE_TYPES.get(view.get_dtype(), torch.int64)
            tensors[name] = StoredTensor(tuple(view.get_shape()), dtype, functools.partial(file.get_tensor, name))
        metadata = file.metadata() or {}
    except (SafetensorError, OSError) as error:
        raise _damaged(path, error) from error
    except RuntimeError as error:  # raised by torch if the file cannot be mapped into memory
        raise VitkitError("weights.file-unreadable", f"{path} cannot be opened: {first_line(error)}") from error
    pictures = metadata.get(PICTURES)
    ignored: dict[str, str] = {}
    if not full_names:
        tensors, ignored = without_prefixes(tensors, path)
    return Checkpoint(
        path=path,
        tensors=tensors,
        ignored=ignored,
        metadata=metadata,
        pictures=None if pictures is None else decode_record(pictures, path),
    )


# The usual keys of the weights in training checkpoints. Among keys of the same `_rank`, earlier ones are preferred.
_KEYS = ("model", "state_dict", "model_state_dict", "module", "net", "network", "weights", "params")


def _has_member(path: Path, ending: str) -> bool:
    try:
        with zipfile.ZipFile(path) as archive:
            return any(name.endswith(ending) for name in archive.namelist())
    except zipfile.BadZipFile as error:
        raise _damaged(path, error) from error


def read_torch(path: Path) -> Checkpoint:
    """Read the weights in a PyTorch file, without the training state that may surround them."""
    is_zip = zipfile.is_zipfile(path)
    if is_zip and _has_member(path, "/constants.pkl"):
        raise VitkitError(
            "weights.code-refused",
            f"{path} is a TorchScript archive, whose code is not run: save its weights with "
            "torch.save(torch.jit.load(path).state_dict(), ...), and use that file",
        )
    try:
        # Authors store their command line with the weights; a Namespace holds plain values and runs no code.
        with torch.serialization.safe_globals([argparse.Namespace]), warnings.catch_warnings(action="ignore"):
            content = torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip)
    except pickle.UnpicklingError as error:
        if "truncated" in str(error):
            raise _damaged(path, "it ends too early") from error
        raise VitkitError(
            "weights.code-refused",
            f"{path} contains more than tensors, which could run code; it is not read: save the weights alone with "
            "torch.save(model.state_dict(), ...)",
        ) from error
    except (RuntimeError, EOFError, OSError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise _damaged(path, first_line(error)) from error
    wrappers, weights, others = _unwrap(content, path)

    @functools.cache
    def check_once() -> None:
        """Compare the content of the file with its checksums, because PyTorch does not."""
        with zipfile.ZipFile(path) as archive:
            wrong = archive.testzip()
            if wrong is not None and archive.getinfo(wrong).CRC:  # it is 0 if PyTorch wrote no checksums
                raise _damaged(path, f"bad CRC-32 of {wrong}")

    def read(tensor: Tensor) -> Tensor:
        if is_zip:
            check_once()
        return tensor.detach()

    stored: dict[str, StoredTensor] = {}
    for name, tensor in weights.items():
        is_usable = tensor.layout == torch.strided and not tensor.is_meta and tensor.dtype in _SAFE_TYPES.values()
        dtype = tensor.dtype if is_usable else torch.int64  # see `_SAFE_TYPES`
        stored[name] = StoredTensor(tuple(tensor.shape), dtype, functools.partial(read, tensor))
    tensors, ignored = without_prefixes(stored, path)
    return Checkpoint(
        path=path,
        tensors=tensors,
        wrappers=wrappers,
        ignored=others | ignored,
        pictures=embedded_in_zip(path) if is_zip else None,
    )


def _unwrap(content: Any, path: Path) -> tuple[tuple[str, ...], dict[str, Tensor], dict[str, str]]:
    """Return the keys that lead to the weights, the weights by name, and what was not taken, with the reasons."""
    wrappers: tuple[str, ...] = ()
    ignored: dict[str, str] = {}
    beside: list[str] = []  # the keys of anything other than weights, on every level
    while isinstance(content, Mapping) and not _is_state_dict(content):
        keys = sorted((key for key in content if _holds_weights(content[key])), key=_rank_of_key)
        if not keys:
            break
        chosen, *others = keys
        paths = {key: ".".join((*wrappers, str(key))) for key in keys}
        if others and _rank_of_key(others[0]) == _rank_of_key(chosen):
            raise VitkitError(
                "weights.sets-ambiguous",
                f"{path} contains several sets of weights, {listed(list(paths.values()), 6)}: save only one of them",
            )
        ignored |= {paths[key]: f"{chosen} was taken" for key in others}
        beside += [str(key) for key in content if key not in paths]
        wrappers = (*wrappers, str(chosen))
        content = content[chosen]
    if not isinstance(content, Mapping):
        raise VitkitError(
            "weights.tensors-absent",
            f"{path} does not contain named weights, but a {type(content).__name__}: save model.state_dict()",
        )
    weights = {name: value for name, value in content.items() if isinstance(name, str) and isinstance(value, Tensor)}
    if not weights and content:
        names = listed([str(name) for name in content], 6)
        raise VitkitError(
            "weights.tensors-absent", f"{path} contains no tensors by name, but {names}: save model.state_dict()"
        )
    beside += [str(name) for name in content if name not in weights]
    if beside:
        ignored[f"what stands beside the weights ({listed(beside, 6)})"] = "only weights are read"
    return wrappers, weights, ignored


def _rank_of_key(key: Any) -> tuple[int, int]:
    return _rank(str(key)), _KEYS.index(key) if key in _KEYS else len(_KEYS)


def _is_state_dict(content: Mapping[Any, Any]) -> bool:
    # The names of tensors contain dots, or are those of a single layer.
    return any(
        isinstance(name, str) and isinstance(value, Tensor) and ("." in name or name == "weight")
        for name, value in content.items()
    )


def _holds_weights(content: Any) -> bool:
    return isinstance(content, Mapping) and (_is_state_dict(content) or any(map(_holds_weights, content.values())))


_OPEN_CLIP = ("open_clip_model.safetensors", "open_clip_pytorch_model.bin")


def read_checkpoint(path: Path, *, full_names: bool = False) -> Checkpoint:
    """Read the names and shapes in a checkpoint file, or in a folder in the Hugging Face hub's layout.

    Args:
        path: the file or folder.
        full_names: whether to keep all prefixes of tensor names in a safetensors file, because a user's network may
            have names with such prefixes.

    Raises:
        VitkitError: the file does not exist, contains no tensors or is damaged, or reading it would run code.
    """
    if path.is_file():
        return _read_file(path, full_names=full_names)
    if not path.is_dir():
        raise VitkitError("weights.source-missing", f"no such file or folder: {path}")
    if (path / "adapter_config.json").is_file():
        raise VitkitError(
            "weights.adapter-unsupported",
            f"{path} contains an adapter (adapter_config.json), which changes the weights and is not read: merge it "
            "into the model with peft's merge_and_unload(), and save that model",
        )
    files = _weight_files(path)
    tensors: dict[str, StoredTensor] = {}
    for file in files:
        part = _read_file(file)
        if duplicates := tensors.keys() & part.tensors.keys():
            raise _damaged(path, f"{min(duplicates)} is in several files")
        tensors |= part.tensors
    description = path / ("open_clip_config.json" if files[0].name in _OPEN_CLIP else "config.json")
    # In transformers, processor_config.json has precedence over preprocessor_config.json.
    processor = (_read_json(path / "processor_config.json") or {}).get("image_processor")
    if processor is None:
        processor = _read_json(path / "preprocessor_config.json")
    return replace(part, path=path, tensors=tensors, config=_read_json(description), preprocessor=processor)


def _weight_files(folder: Path) -> list[Path]:
    for name in ("model.safetensors.index.json", "pytorch_model.bin.index.json"):
        path = folder / name
        index = _read_json(path)
        if index is None:
            continue
        # The files that an index lists must exist in the same folder.
        try:
            shards = sorted(set(index["weight_map"].values()))
        except (KeyError, AttributeError, TypeError) as error:
            raise _damaged(path, "it has no weight_map") from error
        if not shards:
            raise _damaged(path, "its weight_map names no file")
        for shard in shards:
            # The name must be that of a file, and not a path on any system.
            if not isinstance(shard, str) or not re.fullmatch(r"(?!\.\.?$)[^/\\:\0]+", shard):
                raise VitkitError(
                    "weights.index-invalid",
                    f"{path} names {shard!r:.200}: expected the names of files in the same folder",
                )
        files = [folder / shard for shard in shards]
        missing = [file.name for file in files if not file.is_file()]
        if missing:
            raise VitkitError(
                "weights.shard-missing",
                f"{folder} is incomplete: it lacks {', '.join(missing)}, which {name} lists; download what is missing",
            )
        return files
    for name in ("model.safetensors", "pytorch_model.bin", *_OPEN_CLIP):
        if (folder / name).is_file():
            return [folder / name]
    endings = ("safetensors", "npz", "pth", "pt", "bin")
    candidates = [file for ending in endings for file in sorted(folder.glob(f"*.{ending}")) if file.is_file()]
    if len(candidates) == 1:
        return candidates
    if candidates:
        raise VitkitError(
            "weights.files-ambiguous",
            f"{folder} contains several weight files: use one of {', '.join(file.name for file in candidates)}",
        )
    raise VitkitError(
        "weights.tensors-absent",
        f"{folder} contains no weights: expected model.json (vitkit), model.safetensors or pytorch_model.bin",
    )


def _read_json(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    try:
        content = from_json(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise _damaged(path, error) from error
    if not isinstance(content, dict):
        raise _damaged(path, "it is not a JSON object")
    return content


def _read_file(path: Path, *, full_names: bool = False) -> Checkpoint:
    with path.open("rb") as file:
        start = file.read(16)
    if not start:
        raise VitkitError("weights.file-damaged", f"{path} is empty")
    if start.startswith(b"PK"):  # a zip file
        is_torch = _has_member(path, "/data.pkl")
        checkpoint = read_torch(path) if is_torch else read_npz(path)
    elif start[8:9] == b"{":  # safetensors: the length of a JSON header in 8 bytes, then the header
        checkpoint = read_safetensors(path, full_names=full_names)
    elif start[:1] == b"\x80" or start[:4] == b"PYTO":  # older formats of PyTorch
        checkpoint = read_torch(path)
    else:
        raise VitkitError(
            "weights.format-unknown", f"{path} is not a checkpoint in the format safetensors, PyTorch or .npz"
        )
    if not checkpoint.tensors:
        raise VitkitError("weights.tensors-absent", f"{path} contains no tensors")
    return checkpoint
