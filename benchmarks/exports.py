"""Which models can be exported to which format?

    python benchmarks/exports.py [--layers 2] [--models ViT,ResNet] [--formats onnx,openvino]

Each model has 10 classes and random weights of seed 0. Networks are whole. Vision Transformers have their first layers
only (`--layers`), because all layers consist of the same operations, and some converters take minutes for twelve.

`verified` means that `vitkit.export` has kept the file: its runtime computes the same logits as the model for 64
synthetic images. `difference` is the largest difference of a logit, relative to the largest logit. For a page (`html`),
this is the ONNX file in it, computed by ONNX Runtime, not by a browser. Each cell has a process of its own, so a
converter that crashes, or takes longer than `--limit`, is `refused`, too. `seconds` is the processor time of this
process.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import timm
import torch
from tables import RESULTS, read_table, result_path, write_table
from timm.models import save_for_hf
from torch import nn

import vitkit
from vitkit import Classifier, Preprocess, VitkitError
from vitkit.exporting.formats import FORMATS
from vitkit.model.build import Model

CLASSES = tuple("abcdefghij")
TIMMS: dict[str, tuple[str, dict[str, Any]]] = {  # Vision Transformers that vitkit loads from timm's layout
    "ViT": ("vit_tiny_patch16_224", {}),
    "DeiT distilled": ("deit_tiny_distilled_patch16_224", {}),
    "DeiT III": ("deit3_small_patch16_224", {}),
    "MAE fine-tuned": ("vit_base_patch16_224", {"global_pool": "avg"}),
    "CLIP": ("vit_base_patch32_clip_quickgelu_224", {}),
    "SigLIP": ("vit_base_patch16_siglip_224", {}),
    "DINOv2 with registers": ("vit_small_patch14_reg4_dinov2", {"img_size": 224}),
    "DINOv3": ("vit_small_patch16_dinov3", {}),
    "EVA-02": ("eva02_tiny_patch14_224", {}),
    "BEiT v2": ("beitv2_base_patch16_224", {}),
    "hybrid": ("vit_small_r26_s32_224", {}),
}
WINDOWS = {"attention": "window", "window_size": 7, "position": "relative_bias", "position_at": "every_layer"}
OURS: dict[str, tuple[str, dict[str, Any]]] = {"windows with relative bias": ("vit_tiny_patch16_224", WINDOWS)}
NETWORKS = {
    "ResNet": "torchvision:resnet50",
    "ConvNeXt": "timm:convnext_tiny",
    "EfficientNet": "torchvision:efficientnet_b0",
    "MobileNetV3": "torchvision:mobilenet_v3_large",
    "Swin": "torchvision:swin_t",
}
FAMILIES = {name: model for name, (model, _) in (TIMMS | OURS).items()} | NETWORKS
RUNTIMES = {
    "onnx": "onnxruntime",
    "openvino": "openvino",
    "executorch": "executorch",
    "litert": "ai-edge-litert",
    "html": "onnxruntime",
}


def build(family: str, layers: int) -> Model:
    """Build a model of a family, whose weights are all random."""
    torch.manual_seed(0)
    if family in NETWORKS:
        model: Model = vitkit.create_model(NETWORKS[family], num_classes=len(CLASSES))
    elif family in OURS:
        name, fields = OURS[family]
        model = vitkit.create_model(name, num_classes=len(CLASSES), layers=layers, **fields)
    else:
        name, options = TIMMS[family]
        theirs = timm.create_model(name, num_classes=len(CLASSES), depth=layers, **options)
        with tempfile.TemporaryDirectory() as folder:
            save_for_hf(theirs, folder, model_args={"depth": layers, **options}, safe_serialization=True)
            model = vitkit.load(folder).model
    randomize(model)
    return model.eval()


@torch.no_grad()
def randomize(model: Model) -> None:
    """Draw all weights, so that each of them matters: also those that begin as zeros or as ones."""
    for name, weight in model.named_parameters():
        if name.endswith("weight") and weight.ndim > 1:
            nn.init.normal_(weight, std=(len(weight) / weight.numel()) ** 0.5)
        elif weight.std() < 0.1:  # biases, scales, tokens, positions
            weight.add_(torch.randn_like(weight), alpha=0.2)
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # the average of all batches
    if norms:
        model.train()(torch.randn(8, 3, *model.config.image_size))


def cell(family: str, form: str, layers: int) -> dict[str, Any]:
    """Export a model to a format, and say what became of it."""
    model = build(family, layers)
    classifier = Classifier(model, CLASSES, Preprocess(size=model.config.image_size))
    found: dict[str, Any]
    try:
        with tempfile.TemporaryDirectory() as folder:
            suffix = ".html" if form == "html" else FORMATS[form].suffix
            outcome = vitkit.export(classifier, out=Path(folder, f"model{suffix}")).outcome
        found = {"verdict": "verified", "difference": f"{outcome.comparison.drift:.1e}", "message": None}
    except VitkitError as error:
        found = {"verdict": "refused", "difference": None, "message": re.sub(r"\S+/(?=model\.)", "", str(error))}
    used = resource.getrusage(resource.RUSAGE_SELF)
    return found | {"seconds": round(used.ru_utime + used.ru_stime)}


def attempt(family: str, form: str, layers: int, limit: int) -> dict[str, Any]:
    """Compute a cell in a process of its own: a row of the table."""
    command = [sys.executable, __file__, "--cell", family, form, "--layers", str(layers)]
    lost: dict[str, Any] = {"verdict": "refused", "difference": None, "message": None, "seconds": None}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit)
        last = (done.stdout.splitlines() or [""])[-1]
        found = json.loads(last) if last.startswith("{") else lost | {"message": _crash(done)}
    except subprocess.TimeoutExpired:
        found = lost | {"message": f"not finished after {limit} s"}
    model, is_whole = FAMILIES[family], family in NETWORKS
    row = {"family": family, "model": model, "layers": "all" if is_whole else layers, "format": form}
    return row | found | {"runtime": f"{RUNTIMES[form]} {version(RUNTIMES[form])}"}


def _crash(done: subprocess.CompletedProcess[str]) -> str:
    return f"exit status {done.returncode}: {(done.stderr.strip().splitlines() or [''])[-1]}"


def as_markdown(rows: list[dict[str, Any]]) -> str:
    """The families and formats as a table, with the refusals below it."""
    found = {(row["family"], row["format"]): row for row in rows}
    forms = [form for form in RUNTIMES if any(row["format"] == form for row in rows)]
    lines = [f"| family | model | layers | {' | '.join(forms)} |", "|---" * (3 + len(forms)) + "|"]
    for family, model in FAMILIES.items():
        cells = [found.get((family, form)) for form in forms]
        if any(cells):
            layers = next(each["layers"] for each in cells if each)
            texts = [each and (each["difference"] or "refused") for each in cells]
            lines.append(f"| {family} | `{model}` | {layers} | {' | '.join(str(text or '') for text in texts)} |")
    refused = [f"{row['family']}, {row['format']}: {row['message']}" for row in rows if row["verdict"] == "refused"]
    return "\n".join([*lines, "", *refused, f"{len(rows) - len(refused)} of {len(rows)} verified"])


def _is_installed(form: str) -> bool:
    try:
        FORMATS.get(form, FORMATS["onnx"]).check("float32")
    except VitkitError as error:
        print(f"left out: {error}", file=sys.stderr)
        return False
    return True


def _in_order(rows: dict[Any, Any]) -> dict[Any, Any]:
    return {(family, form): rows[family, form] for family in FAMILIES for form in RUNTIMES if (family, form) in rows}


def main() -> None:
    """Try all cells, print the table and write it. A second run on the same day replaces what it tries again."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--models", default=",".join(FAMILIES), help="families, separated by commas")
    parser.add_argument("--formats", default=",".join(RUNTIMES))
    parser.add_argument("--limit", type=int, default=600, help="seconds for a cell")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--cell", nargs=2, metavar=("FAMILY", "FORMAT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.cell:
        family, form = options.cell
        print(json.dumps(cell(family, form, options.layers)))
        return
    path = result_path("exports", "float32", folder=options.out)
    rows = {(row["family"], row["format"]): row for row in read_table(path)}
    forms = list(filter(_is_installed, options.formats.split(",")))
    for family in options.models.split(","):
        for form in forms:
            row = attempt(family, form, options.layers, options.limit)
            rows = _in_order(rows | {(family, form): row})
            write_table(path, list(rows.values()))
            print(f"{family:26} {form:10} {row['difference'] or row['message']} ({row['seconds']} s)", flush=True)
    print(as_markdown(list(rows.values())), path, sep="\n")


if __name__ == "__main__":
    main()
