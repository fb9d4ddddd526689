"""Published weights: where they are, the pixels and classes they were trained for, licence, paper, accuracy. Data only.

Names are timm's, MODEL.TAG, and where timm has the same name it means the same weights: `augreg_in21k` and
`augreg_in21k_ft_in1k` are the AugReg runs that timm picked, `augreg_best_in21k` and `augreg_best_in21k_ft_in1k` those
that AugReg's authors recommend (arXiv 2106.10270), `orig_*` the first paper's own files, `jx_in21k` their
conversion with the representation layer, `tv_*` torchvision's. Repositories on the Hugging Face hub go by their id.
"""

from __future__ import annotations

import difflib
import fnmatch
import re
from pathlib import Path

from vitkit.model import config
from vitkit.weights.entry import Entry
from vitkit.weights.google_weights import augreg, google_hub, jx, orig
from vitkit.weights.other_weights import deit, dino_and_mae, dinov2, torchvision

HUB = "hf:"  # before a repository on the hub, whatever lies on disk

CATALOG: dict[str, Entry] = {
    entry.name: entry
    for source in (augreg, orig, jx, google_hub, deit, dino_and_mae, dinov2, torchvision)
    for entry in source()
}


def find(name: str) -> Entry | None:
    """The entry of that name."""
    return CATALOG.get(name)


def search(pattern: str = "*") -> list[Entry]:
    """Entries whose name fits a shell pattern (`*base*`) or contains it (`base`)."""
    return [entry for name, entry in CATALOG.items() if fnmatch.fnmatch(name, pattern) or pattern in name]


def suggest(name: str) -> str:
    """` (did you mean ...?)` with names like this one, or nothing."""
    return config.suggest(name, list(CATALOG))


def missing(path: str) -> str:
    """That there is no such file or folder, with what lies beside it under names like it, or what else was meant."""
    place = Path(path)
    if "," in path:
        return (
            f"no such file, folder or published weights: {path}; `vitkit train` chooses among several within a time: "
            "--select-time 5m"
        )
    if place.parent.name and (place.parent.is_dir() or place.parent.name == "runs"):
        beside = [own.name for own in place.parent.iterdir()] if place.parent.is_dir() else []
        close = difflib.get_close_matches(place.name, beside, n=2)
        meant = f" (did you mean {' or '.join(str(place.parent / own) for own in close)}?)" if close else ""
        return f"no such file, folder or published weights: {path}{meant}"
    return f"no such file, folder or published weights: {path}{suggest(path)}"


def is_hub_id(name: str) -> bool:
    """Whether a name that nothing else explains is a repository on the hub: `owner/name`, and not a path.

    What exists on disk, lies in a folder that does, or in `runs`, or ends as a weight file does, is a path.
    """
    if not re.fullmatch(r"\w[\w-]*/\w[\w.-]*", name, re.ASCII) or ".." in name or "--" in name:
        return False
    if name.endswith((".", "-")) or Path(name).suffix in (".safetensors", ".npz", ".pth", ".pt", ".bin", ".ckpt"):
        return False
    owner = Path(name).parent
    return owner.name != "runs" and not owner.exists()
