"""Checkpoints in numpy's `.npz` files: a zip whose arrays are not as large as they say is refused before unpacking."""

from __future__ import annotations

import json
import math
import zipfile
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from vitkit.errors import VitkitError
from vitkit.system.files import from_json
from vitkit.weights.checkpoint import Checkpoint, Stored
from vitkit.weights.tucked import tucked_in


def read_npz(path: Path) -> Checkpoint:
    """What the file holds; each array is unpacked when it is asked for."""
    try:
        archive = zipfile.ZipFile(path)
        members = [member for member in archive.infolist() if member.filename.endswith(".npy")]
        tensors = {member.filename.removesuffix(".npy"): _of_npz(archive, member, path) for member in members}
    except (zipfile.BadZipFile, ValueError, EOFError, OSError, NotImplementedError) as error:
        raise VitkitError(f"{path} is damaged: {error}") from error
    return Checkpoint(path=path, tensors=tensors, metadata=_of_comment(archive.comment), pictures=tucked_in(path))


def _of_comment(comment: bytes) -> dict[str, str]:
    """What vitkit's export notes in the zip file's comment, section by section."""
    try:
        content = from_json(comment)
    except ValueError:
        return {}
    return {name: json.dumps(value) for name, value in content.items()} if isinstance(content, dict) else {}


def _of_npz(archive: zipfile.ZipFile, member: zipfile.ZipInfo, path: Path) -> Stored:
    with archive.open(member) as stream:
        shape, fortran, dtype = _npy_header(stream)
        begin = stream.tell()
    if dtype.hasobject:
        raise VitkitError(f"{path}: {member.filename} holds Python objects, which could run code; it is not read")
    if begin + math.prod(shape) * dtype.itemsize != member.file_size:
        raise VitkitError(f"{path} is damaged: {member.filename} is not as large as its shape {shape} says")

    def read() -> Tensor:
        array = np.empty(shape[::-1] if fortran else shape, dtype)
        with archive.open(member) as stream:
            stream.read(begin)
            _fill(stream, array.reshape(-1).view(np.uint8).data, path)
        return _as_tensor(array.T if fortran else array)

    return Stored(shape, _torch_dtype(dtype), read)


def _npy_header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = np.lib.format.read_magic(stream)
    reader = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    return reader(stream)


def _fill(stream: IO[bytes], buffer: memoryview, path: Path) -> None:
    done = 0
    while done < len(buffer):
        try:
            count = stream.readinto(buffer[done:])  # type: ignore[attr-defined]
        except (zipfile.BadZipFile, EOFError) as error:
            raise VitkitError(f"{path} is damaged: {error}") from error
        if not count:
            raise VitkitError(f"{path} is damaged: it ends too early")
        done += count


def _torch_dtype(dtype: np.dtype[Any]) -> torch.dtype:
    if dtype == np.dtype("V2"):
        return torch.bfloat16  # as big_vision saves it: numpy has no such type
    kinds = {np.dtype(np.float32): torch.float32, np.dtype(np.float16): torch.float16, np.dtype(float): torch.float64}
    return kinds.get(dtype, torch.int64)


def _as_tensor(array: Any) -> Tensor:
    if array.dtype == np.dtype("V2"):
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)
