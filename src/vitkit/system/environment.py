"""The environment of vitkit: its folders for caches and state, its offline switch, and the devices of this machine."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Literal

from vitkit.errors import VitkitError


def cache_folder() -> Path:
    """Return VITKIT_CACHE, or vitkit's folder in the user's cache: for files that can be made or fetched again."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("VITKIT_CACHE") or Path(base) / "vitkit")


def state_folder() -> Path:
    """Return VITKIT_STATE, or vitkit's folder in the user's state: for work that was begun and is not finished.

    Raises:
        VitkitError: the folder is not private; see `private`.
    """
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return private(Path(os.environ.get("VITKIT_STATE") or Path(base) / "vitkit"))


def private(folder: Path) -> Path:
    """Return a folder that no other user can write to, and make it if it is missing: its content may be acted upon.

    Raises:
        VitkitError: it belongs to another user, others may write to it, or it cannot be made.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        seen = folder.stat()
    except OSError as error:
        raise VitkitError(f"cannot make {folder}: {error.strerror}; VITKIT_STATE may name another folder") from error
    if hasattr(os, "getuid") and (seen.st_uid != os.getuid() or seen.st_mode & (stat.S_IWGRP | stat.S_IWOTH)):
        raise VitkitError(f"{folder} is another user's, or others may write in it: make it yours alone (chmod 700)")
    return folder


def offline() -> str | None:
    """Return the environment variable that forbids downloads, with its value, or None."""
    for name in ("VITKIT_OFFLINE", "HF_HUB_OFFLINE"):
        if os.environ.get(name, "").lower() in ("1", "true", "yes", "on"):
            return f"{name}={os.environ[name]}"
    return None


DeviceName = Literal["auto", "cpu", "cuda", "mps"]


def choose_device(device: str = "auto") -> str:
    """Return `cpu`, `cuda` or `mps`; `auto` is a CUDA GPU if there is one, else the CPU.

    Raises:
        VitkitError: this machine has no such device.
    """
    available = available_devices()
    if device == "auto":
        return "cuda" if "cuda" in available else "cpu"
    if device not in available:
        raise VitkitError(f"--device {device}: there is none here; found: {', '.join(available)}")
    return device


def available_devices() -> tuple[str, ...]:
    """Return the devices of this machine that PyTorch can use."""
    import torch

    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    return tuple(name for name, is_there in there.items() if is_there)
