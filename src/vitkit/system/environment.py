"""Where models compute: what can be asked for, and what is here.

Where vitkit keeps what it can make or fetch again, and what it cannot; and whether it may fetch.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Literal

from vitkit.errors import VitkitError


def cache_folder() -> Path:
    """VITKIT_CACHE, else vitkit's own folder in the user's cache."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("VITKIT_CACHE") or Path(base) / "vitkit")


def state_folder() -> Path:
    """VITKIT_STATE, else vitkit's own folder in the user's state: what was begun here and is not done yet.

    Raises:
        VitkitError: as of `private`.
    """
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return private(Path(os.environ.get("VITKIT_STATE") or Path(base) / "vitkit"))


def private(folder: Path) -> Path:
    """A folder that nobody else writes in, made if need be: what is in there may be acted upon.

    Raises:
        VitkitError: it is another user's, others may write in it, or it cannot be made.
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
    """The switch that forbids downloading, as it stands in the environment."""
    for name in ("VITKIT_OFFLINE", "HF_HUB_OFFLINE"):
        if os.environ.get(name, "").lower() in ("1", "true", "yes", "on"):
            return f"{name}={os.environ[name]}"
    return None


DeviceName = Literal["auto", "cpu", "cuda", "mps"]


def choose_device(device: str = "auto") -> str:
    """`cpu`, `cuda` or `mps`; `auto` is a CUDA GPU if there is one, else the CPU.

    Raises:
        VitkitError: there is no such device here.
    """
    found = found_devices()
    if device == "auto":
        return "cuda" if "cuda" in found else "cpu"
    if device not in found:
        raise VitkitError(f"--device {device}: there is none here; found: {', '.join(found)}")
    return device


def found_devices() -> tuple[str, ...]:
    """The devices of this machine that PyTorch can compute on."""
    import torch

    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    return tuple(name for name, is_there in there.items() if is_there)
