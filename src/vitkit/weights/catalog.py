"""Published weights: where they are, the pixels and classes they were trained for, licence, paper, accuracy. Data only.

Names are timm's, MODEL.TAG, and where timm has the same name it means the same weights: `augreg_in21k` and
`augreg_in21k_ft_in1k` are the AugReg runs that timm picked, `augreg_best_in21k` and `augreg_best_in21k_ft_in1k` those
that AugReg's authors recommend (arXiv 2106.10270), `orig_*` the first paper's own files, `jx_in21k` their
conversion with the representation layer, `tv_*` torchvision's. Repositories on the Hugging Face hub go by their id.
Whatever else timm publishes for Vision Transformers is in `published.py`, by its tags.
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
from vitkit.weights.published import tagged, tags

HUB = "hf:"  # before a repository on the hub, whatever lies on disk

CATALOG: dict[str, Entry] = {
    entry.name: entry
    for source in (augreg, orig, jx, google_hub, deit, dino_and_mae, dinov2, torchvision)
    for entry in source()
}


def find(name: str) -> Entry | None:
    """The entry of that name in the catalog; what timm publishes beside it is not in there."""
    return CATALOG.get(name)


def find_published(name: str) -> Entry | None:
    """The entry of that name, of the catalog or of timm's tags."""
    return find(name) or tagged(name)


def names() -> list[str]:
    """Of all published weights that go by one: the catalog's, then timm's tags."""
    return [*CATALOG, *tags()]


def search(pattern: str = "*") -> list[Entry]:
    """Entries whose name fits a shell pattern (`*base*`) or contains it (`base`)."""
    found = [name for name in names() if fnmatch.fnmatch(name, pattern) or pattern in name]
    return [entry for entry in map(find_published, found) if entry is not None]


def tags_of(model: str) -> list[str]:
    """The tags that are published of a model of timm's naming, which need not be one that goes by that name here."""
    return [name.partition(".")[2] for name in names() if name.startswith(f"{model}.")]


def suggest(name: str) -> str:
    """` (did you mean ...?)` with names like this one, or the tags of a model; or nothing."""
    if known := tags_of(name):
        told = f"{name}.{known[0]}" if len(known) == 1 else f"one of its tags: {', '.join(known)}"
        return f" (name {told})"
    return config.suggest(name, names())


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
