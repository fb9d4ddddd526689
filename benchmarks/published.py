"""How many of timm's pre-trained ViT tags load: `python benchmarks/published.py [--smoke]`.

Each architecture is built without memory, its tensors' names and shapes are written as a bare safetensors file whose
numbers are a hole, and `vitkit.weights.inspect` is asked about it. A tag counts as its architecture does. Printed: what
loads with what was assumed beside pixels and classes, what is refused and as what, and the totals.
"""

from __future__ import annotations

import argparse
import json
import math
import struct
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import timm
import torch

from vitkit.errors import VitkitError
from vitkit.weights import inspect

MODULES = (
    "vision_transformer",
    "deit",
    "eva",
    "beit",
    "naflexvit",
    "vision_transformer_hybrid",
    "vision_transformer_relpos",
)
USUAL = ("preprocess", "classes")  # assumed of every bare file
LARGEST = 6_000_000_000  # parameters; of larger models eight layers, since a file of them cannot be mapped everywhere
FEW = ("deit_base_patch16_224", "deit3_medium_patch16_224", "vit_base_mci_224")  # one of each outcome


def write_shapes(shapes: Mapping[str, tuple[int, ...]], path: Path) -> Path:
    """Write a safetensors file of tensors with these shapes, whose numbers are a hole in the file."""
    header, end = {}, 0
    for name, shape in shapes.items():
        size = 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)
    return path


def outcome_of(architecture: str, path: Path) -> tuple[str, str]:
    """`loads`, `assumed` or `refused`, and what there is to say of it."""
    with torch.device("meta"):
        model = timm.create_model(architecture)
        if sum(parameter.numel() for parameter in model.parameters()) > LARGEST:
            model = timm.create_model(architecture, depth=8)
        write_shapes({name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}, path)
    try:
        assumed = inspect(path).report.assumed
    except VitkitError as error:
        return "refused", str(error).partition(path.name)[2].lstrip(": ")
    special = {name: text for name, text in assumed.items() if name not in USUAL}
    return ("assumed" if special else "loads"), ", ".join(special)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="three architectures alone")
    is_smoke = parser.parse_args().smoke
    totals: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        for module in MODULES:
            tags = timm.list_models(module=module, pretrained=True, include_tags=True)
            for architecture, count in Counter(tag.partition(".")[0] for tag in tags).items():
                if is_smoke and architecture not in FEW:
                    continue
                found, said = outcome_of(architecture, Path(folder) / "bare.safetensors")
                totals[found] += count
                print(f"{found:8} {count:3} {architecture}  {said[:90]}")
    print(f"of {totals.total()} tags {totals['loads']} load, {totals['assumed']} more with an assumption that is said")


if __name__ == "__main__":
    main()
