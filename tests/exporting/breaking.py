"""Writers of exported files that make a mistake."""

from pathlib import Path
from typing import Any

import torch

from vitkit.model import VisionTransformer


def broken(write: Any, change: Any) -> Any:
    """A writer that writes something other than it is asked to."""

    def other(model: VisionTransformer, path: Path, card: str, batch: int | None, dtype: torch.dtype) -> None:
        copy = VisionTransformer(model.config).eval()
        copy.load_state_dict(model.state_dict())
        changed = change(copy, card)
        write(copy, path, card if changed is None else changed, batch, dtype)

    return other
