"""Where vitkit keeps what it can make or fetch again, and whether it may fetch."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """VITKIT_CACHE, else vitkit's own folder in the user's cache."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("VITKIT_CACHE") or Path(base) / "vitkit")


def offline() -> str | None:
    """The switch that forbids downloading, as it stands in the environment."""
    for name in ("VITKIT_OFFLINE", "HF_HUB_OFFLINE"):
        if os.environ.get(name, "").lower() in ("1", "true", "yes", "on"):
            return f"{name}={os.environ[name]}"
    return None
