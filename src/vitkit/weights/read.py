"""Reading a checkpoint's names and shapes first, its numbers when they are asked for, and never its code.

The kind of a file is told by its content.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vitkit.errors import VitkitError
from vitkit.system.files import from_json
from vitkit.weights.checkpoint import Checkpoint, Stored
from vitkit.weights.npz_file import read_npz
from vitkit.weights.safetensors_file import read_safetensors
from vitkit.weights.torch_file import is_torch_zip, read_torch

_OPEN_CLIP = ("open_clip_model.safetensors", "open_clip_pytorch_model.bin")
_SHARDS = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_BESIDE = r"(?!\.\.?$)[^/\\:\0]+"  # a file's name, and no path on any system
_FOLDER_FILES = ("model.safetensors", "pytorch_model.bin", *_OPEN_CLIP)


_Identity = tuple[Path, int, int, int]  # with inode, size and time: a file that was written anew is another
_kept: dict[_Identity, Checkpoint] | None = None


@contextmanager
def reading_once() -> Iterator[None]:
    """Within, a file that was read is not read again, unless it has been written anew: a run asks several times.

    Files that are mapped into memory are meant, of which nothing else is kept than the names.
    """
    global _kept
    if _kept is not None:
        yield
        return
    _kept = {}
    try:
        yield
    finally:
        _kept = None


def read_checkpoint(path: Path) -> Checkpoint:
    """The names and shapes in a checkpoint file, or in a folder as the Hugging Face hub has them.

    Raises:
        VitkitError: there is no such file, it holds no tensors, it is damaged, or reading it would run code.
    """
    if path.is_dir():
        return _read_folder(path)
    if not path.is_file():
        raise VitkitError(f"no such file or folder: {path}")
    return _read_file(path)


def _read_folder(folder: Path) -> Checkpoint:
    files = _weight_files(folder)
    tensors: dict[str, Stored] = {}
    for file in files:
        part = _read_file(file)
        tensors |= part.tensors
    return Checkpoint(
        path=folder,
        tensors=tensors,
        wrappers=part.wrappers,
        config=_read_description(folder / _description_of(files)),
        preprocessor=_read_json(folder / "preprocessor_config.json"),
        metadata=part.metadata,
        passed_over=part.passed_over,
        pictures=part.pictures,
    )


def _read_description(path: Path) -> dict[str, Any] | None:
    found = _read_json(path)
    if found is not None and not isinstance(found.get("model_type", ""), str | None):
        raise VitkitError(f"{path} is damaged: model_type is no text")
    return found


def _description_of(files: list[Path]) -> str:
    """OpenCLIP's folders may hold the same model in transformers' layout, with a config.json of its own."""
    return "open_clip_config.json" if files[0].name in _OPEN_CLIP else "config.json"


def _weight_files(folder: Path) -> list[Path]:
    for name in _SHARDS:
        index = _read_json(folder / name)
        if index is not None:
            files = _shards(folder / name, index)
            missing = [file.name for file in files if not file.is_file()]
            if missing:
                raise VitkitError(f"{folder} is incomplete: {', '.join(missing)} of {name} is missing")
            return files
    for name in _FOLDER_FILES:
        if (folder / name).is_file():
            return [folder / name]
    endings = ("safetensors", "npz", "pth", "pt", "bin")
    loose = [file for suffix in endings for file in sorted(folder.glob(f"*.{suffix}")) if file.is_file()]
    if len(loose) == 1:
        return loose
    if loose:
        raise VitkitError(f"{folder} holds several weight files: name one of {', '.join(file.name for file in loose)}")
    raise VitkitError(
        f"{folder} holds no weights: expected model.json (vitkit), model.safetensors or pytorch_model.bin"
    )


def _shards(path: Path, index: dict[str, Any]) -> list[Path]:
    """The files that an index names, which lie beside it.

    Raises:
        VitkitError: it names none, or one that lies elsewhere.
    """
    try:
        shards = sorted(set(index["weight_map"].values()))
    except (KeyError, AttributeError, TypeError) as error:
        raise VitkitError(f"{path} is damaged: it has no weight_map") from error
    if not shards:
        raise VitkitError(f"{path} is damaged: its weight_map names no file")
    for shard in shards:
        if not isinstance(shard, str) or re.fullmatch(_BESIDE, shard) is None:
            raise VitkitError(f"{path} names {shard!r:.200}: expected the names of files in the same folder")
    return [path.with_name(shard) for shard in shards]


def _read_json(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    try:
        content = from_json(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise VitkitError(f"{path} is damaged: {error}") from error
    if not isinstance(content, dict):
        raise VitkitError(f"{path} is damaged: it holds no JSON object")
    return content


def _read_file(path: Path) -> Checkpoint:
    with path.open("rb") as file:
        start, found = file.read(16), os.fstat(file.fileno())
    identity = (path.resolve(), found.st_ino, found.st_size, found.st_mtime_ns)
    if _kept is not None and identity in _kept:
        return _kept[identity]
    checkpoint = _read_content(path, start)
    is_mapped = start.startswith(b"PK") or start[8:9] == b"{"
    if _kept is not None and is_mapped:
        _kept[identity] = checkpoint
    return checkpoint


def _read_content(path: Path, start: bytes) -> Checkpoint:
    if not start:
        raise VitkitError(f"{path} is empty")
    if start.startswith(b"PK"):
        is_torch = is_torch_zip(path)
        checkpoint = read_torch(path) if is_torch else read_npz(path)
    elif len(start) > 8 and start[8:9] == b"{":
        checkpoint = read_safetensors(path)
    elif start[:1] == b"\x80" or start[:4] == b"PYTO":
        checkpoint = read_torch(path)
    else:
        raise VitkitError(f"{path} is no checkpoint: neither safetensors, nor PyTorch's, nor .npz")
    if not checkpoint.tensors:
        raise VitkitError(f"{path} holds no tensors")
    return checkpoint
