"""Checkpoints that PyTorch saved, read with `weights_only`: never their code."""

from __future__ import annotations

import argparse
import pickle
import re
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitkit.errors import VitkitError
from vitkit.weights.checkpoint import Checkpoint, Stored, without_prefixes
from vitkit.weights.tucked import tucked_in

# The weights of a training checkpoint, in the order in which they are preferred: averaged ones first, teachers before
# students (DINO).
_WRAPPERS = ("model_ema", "state_dict_ema", "teacher", "model", "state_dict", "module", "net", "student")


def is_torch_zip(path: Path) -> bool:
    """Whether a zip file is one that PyTorch saved."""
    try:
        with zipfile.ZipFile(path) as archive:
            return any(name.endswith("/data.pkl") for name in archive.namelist())
    except zipfile.BadZipFile as error:
        raise VitkitError(f"{path} is damaged: {error}") from error


def read_torch(path: Path) -> Checkpoint:
    """The weights in the file, out of what training kept around them."""
    is_zip = zipfile.is_zipfile(path)
    try:
        # Authors keep their command line beside the weights; a Namespace holds plain values and runs nothing.
        with torch.serialization.safe_globals([argparse.Namespace]), warnings.catch_warnings(action="ignore"):
            content = torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip)
    except pickle.UnpicklingError as error:
        if "truncated" in str(error):
            raise VitkitError(f"{path} is damaged: it ends too early") from error
        found = re.search(r"GLOBAL:? (\S+)|[Uu]nsupported (?:global|class) (\S+)|reduce.* (\S+)", str(error))
        what = f", such as {next(filter(None, found.groups()))}" if found else ""
        raise VitkitError(f"{path} holds more than tensors{what}, which could run code; it is not read") from error
    except (RuntimeError, EOFError, OSError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise VitkitError(f"{path} is damaged: {next(iter(str(error).splitlines()), type(error).__name__)}") from error
    passed_over: dict[str, str] = {}
    wrappers, state = _unwrap(content, path, passed_over)
    tensors = {name: _of_torch(tensor) for name, tensor in state}
    return Checkpoint(
        path=path,
        tensors=without_prefixes(tensors, path),
        wrappers=wrappers,
        passed_over=passed_over,
        pictures=tucked_in(path) if is_zip else None,
    )


def _of_torch(tensor: Tensor) -> Stored:
    is_plain = tensor.layout == torch.strided and not tensor.is_meta and not tensor.is_quantized
    return Stored(tuple(tensor.shape), tensor.dtype if is_plain else torch.int64, tensor.detach)


def _unwrap(
    content: Any, path: Path, passed_over: dict[str, str]
) -> tuple[tuple[str, ...], Iterator[tuple[str, Tensor]]]:
    wrappers: tuple[str, ...] = ()
    while isinstance(content, Mapping):
        found = [name for name in _WRAPPERS if isinstance(content.get(name), Mapping)]
        if not found:
            break
        taken, *others = found
        passed_over |= {".".join([*wrappers, name]): f"{taken} was taken" for name in others}
        wrappers, content = (*wrappers, taken), content[taken]
    if not isinstance(content, Mapping):
        raise VitkitError(f"{path} holds no weights by name, but a {type(content).__name__}: save model.state_dict()")
    return wrappers, (
        (name, tensor) for name, tensor in content.items() if isinstance(name, str) and isinstance(tensor, Tensor)
    )
