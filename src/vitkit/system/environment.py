"""The environment of vitkit: its folders for caches and state, its offline switch, and the devices of this machine."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from vitkit.errors import VitkitError

IS_WINDOWS = sys.platform == "win32"
STUDIO_PORT = 8420  # of `vitkit studio`; if it is taken, the next free one is used
_CPU_INFO = Path("/proc/cpuinfo")  # on Linux, lists the CPU's instruction sets; no import of PyTorch is needed


def cache_folder() -> Path:
    """Return the folder for files that can be created or downloaded again.

    This is VITKIT_CACHE, or `vitkit` in the user's cache folder.
    """
    chosen = os.environ.get("VITKIT_CACHE")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or _home() / ".cache") / "vitkit"


def state_folder() -> Path:
    """Return the folder for unfinished work: VITKIT_STATE, or `vitkit` in the user's state folder.

    Raises:
        VitkitError: the folder is not private; see `private`.
    """
    chosen = os.environ.get("VITKIT_STATE")
    if chosen:
        return private(Path(chosen))
    return private(Path(os.environ.get("XDG_STATE_HOME") or _home() / ".local" / "state") / "vitkit")


def _home() -> Path:
    """Return the user's home folder; the root folder for users without one, such as those of system services."""
    try:
        return Path.home()
    except RuntimeError:
        return Path("/")


def private(folder: Path) -> Path:
    """Create a folder if it does not exist, check that no other user can write to it, and return it.

    vitkit executes or trusts the content of files in such a folder.

    Raises:
        VitkitError: the folder belongs to another user, other users may write to it, or it cannot be created.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
    except OSError as error:
        raise VitkitError(
            "system.folder-unwritable", f"cannot create {folder}: {error.strerror}; set VITKIT_STATE to another folder"
        ) from error
    if hasattr(os, "getuid") and (status.st_uid != os.getuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)):
        raise VitkitError(
            "system.folder-shared",
            f"{folder} belongs to another user, or other users may write to it: make it private (chmod 700)",
        )
    return folder


def offline() -> str | None:
    """Return the environment variable that forbids downloads, as NAME=VALUE; None if downloads are allowed."""
    for name in ("VITKIT_OFFLINE", "HF_HUB_OFFLINE"):
        if os.environ.get(name, "").lower() in ("1", "true", "yes", "on"):
            return f"{name}={os.environ[name]}"
    return None


DeviceName = Literal["auto", "cpu", "cuda", "mps"]


def choose_device(device: str = "auto") -> str:
    """Return `cpu`, `cuda` or `mps`; `auto` is a CUDA GPU if there is one, otherwise the CPU.

    Raises:
        VitkitError: this machine has no such device.
    """
    available = available_devices()
    if device == "auto":
        return "cuda" if "cuda" in available else "cpu"
    if device not in available:
        raise VitkitError(
            "system.device-missing", f"--device {device}: this machine has none; available: {', '.join(available)}"
        )
    return device


def available_devices() -> tuple[str, ...]:
    """Return the devices of this machine that PyTorch can use."""
    import torch

    devices = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    return tuple(name for name, is_available in devices.items() if is_available)


def best_precision(device: str = "auto") -> str:
    """Return `bfloat16` if a device has instructions to multiply bfloat16 numbers, otherwise `float32`.

    For devices other than CUDA GPUs and the CPU, the result is `float32`. `auto` is the device that `choose_device`
    returns.
    """
    import torch

    if device == "auto":
        device = choose_device()
    kind = device.partition(":")[0]  # of `cuda:0`, for example
    if kind == "cuda":
        return "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float32"
    return processor_precision() if kind == "cpu" else "float32"


def check_precision(precision: str, device: str) -> None:
    """Refuse `float16` on the CPU, where PyTorch computes it more slowly than float32."""
    if precision == "float16" and device.partition(":")[0] == "cpu":
        raise VitkitError(
            "system.precision-unsupported", "precision float16 is for GPUs: on a processor, use float32 or bfloat16"
        )


def processor_precision() -> str:
    """Return `bfloat16` if the CPU has instructions to multiply bfloat16 numbers, otherwise `float32`."""
    capabilities: Collection[str] | None = None
    with suppress(OSError), _CPU_INFO.open(encoding="utf-8", errors="replace") as lines:  # only Linux has the file
        for line in lines:
            name, _, flags = line.partition(":")
            if name.strip() in ("flags", "Features"):
                capabilities = flags.split()
                break
    if capabilities is None:
        import torch

        # Versions of PyTorch without `get_capabilities` give an empty dictionary.
        has_capability: dict[str, Any] = dict(getattr(torch.cpu, "get_capabilities", dict)())
        capabilities = [name for name, value in has_capability.items() if value]
    return "bfloat16" if {"amx_bf16", "avx512_bf16"} & set(capabilities) else "float32"
