"""What is known of published weights: `python benchmarks/catalog.py [--smoke]` writes src/vitkit/weights/published.csv.

A row for each tag of timm's ViT modules and each entry of vitkit's own catalog. Nothing is typed in: where weights lie,
their licence, pixels and classes are the installed timm's `PretrainedCfg`; parameters and multiply-accumulates are
counted on a model without numbers; accuracies are others' tables (RESULTS, of which sources/ keeps the rows of these
modules) or what stands in vitkit's catalog with its paper. Family and data are read off the name. A cell is empty
where no source is at hand: whether a repository of the hub is gated, of most.
"""

from __future__ import annotations

import argparse
import csv
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import timm
import torch
from published import MODULES
from timm.layers import set_fused_attn
from timm.models import get_pretrained_cfg
from torch.utils.flop_counter import FlopCounterMode

from vitkit.weights import CATALOG, COLUMNS, FILE, Entry
from vitkit.weights.formats.timm import preprocess_from_pretrained

HERE = Path(__file__).parent
RESULTS = {  # what sources/ keeps of each
    "timm results/results-imagenet.csv at 0173a139": HERE / "sources" / "timm-results-imagenet.csv",
    "facebookresearch/dinov2 README.md at 04b91003": HERE / "sources" / "dinov2-readme.csv",
}
FEW = (
    "vit_base_patch16_224.augreg2_in21k_ft_in1k",
    "vit_base_patch16_clip_224.openai",
    "deit_tiny_patch16_224.fb_in1k",
)

LICENCES = {"apache-2.0": "Apache-2.0", "mit": "MIT", "cc-by-nc-4.0": "CC-BY-NC-4.0", None: ""}
# Repositories of the hub of which it is known, and by what; a file at an address of its own is gated by nothing.
GATED = {r"^timm/.*dinov3": ("no", "https://github.com/facebookresearch/dinov3/issues/145")}
FAMILIES = (  # the first that the name has
    ("dinov3", "DINOv3"),
    ("eupe", "EUPE"),
    ("lingbot", "LingBot-Vision"),
    ("sapiens2", "Sapiens 2"),
    ("_pe_", "Perception Encoder"),
    ("radio", "RADIO"),
    ("aimv2", "AIMv2"),
    ("siglip2|v2_webli", "SigLIP 2"),
    ("siglip", "SigLIP"),
    ("intern300m", "InternViT"),
    ("clip|mci", "CLIP"),
    ("beitv2", "BEiT v2"),
    ("beit3", "BEiT-3"),
    ("beit", "BEiT"),
    ("eva02", "EVA-02"),
    ("^eva_", "EVA"),
    ("dinov2", "DINOv2"),
    (r"\.dino$", "DINO"),
    (r"\.mae$", "MAE"),
    ("ijepa", "I-JEPA"),
    ("deit3", "DeiT III"),
    ("deit", "DeiT"),
    ("flexivit", "FlexiViT"),
    ("naflexvit", "NaFlexViT"),
    ("relpos", "ViT, relative positions"),
    ("_rope_", "ViT, rotary positions"),
    (r"_r\d*_", "ViT, hybrid"),
    (r"_r\d+_|_r_s16", "ViT, hybrid"),
    ("", "ViT"),
)
DATA = (  # each that the tag has, in the order of the tag
    ("in1k", "ImageNet-1k"),
    ("in12k", "ImageNet-12k"),
    ("in21k", "ImageNet-21k"),
    ("in22k", "ImageNet-22k"),
    ("laion2b", "LAION-2B"),
    ("laion400m", "LAION-400M"),
    ("openai", "OpenAI's own pairs"),
    ("webli", "WebLI"),
    ("lvd142m", "LVD-142M"),
    ("lvd1689m", "LVD-1689M"),
    ("sat493m", "SAT-493M"),
    ("dfn2b", "DFN-2B"),
    ("dfn5b", "DFN-5B"),
    ("dfndr2b", "DFNDR-2B"),
    ("datacompxl", "DataComp-XL"),
    ("metaclip_400m", "MetaCLIP-400M"),
    ("metaclip_2pt5b", "MetaCLIP-2.5B"),
    ("merged2b", "Merged-2B"),
    ("m38m", "Merged-38M"),
    ("m30m", "Merged-30M"),
    ("yfcc15m", "YFCC-15M"),
    ("swag", "Instagram (arXiv 2201.08371)"),
)
BY_PAPER = {"2012.12877": "ImageNet-1k", "2104.14294": "ImageNet-1k", "2111.06377": "ImageNet-1k"}
BY_PAPER |= {"2304.07193": "LVD-142M", "2309.16588": "LVD-142M"}  # whose tags say nothing of data


def family_of(name: str) -> str:
    return next(family for pattern, family in FAMILIES if re.search(pattern, name))


def data_of(tag: str, paper: str = "") -> str:
    """What the weights were trained on, first to last; of several models in one, all."""
    names = dict(DATA)
    found = [names[token] for token in re.findall("|".join(sorted(names, key=len, reverse=True)), tag)]
    return ", ".join(dict.fromkeys(found)) or BY_PAPER.get(paper, "")


@cache
def results() -> dict[str, tuple[float, str]]:
    """ImageNet-1k top-1, in percent, and its source, by name."""
    found = {}
    for source, file in RESULTS.items():
        with file.open(newline="") as text:
            found |= {row["model"]: (float(row["top1"]), source) for row in csv.DictReader(text)}
    return found


def measured(name: str, data: str) -> str:
    """What learned ImageNet-1k for the figure: the head alone, all of it after other data, or all of it at once."""
    if "_lc_" in name or "dinov2" in name:
        return "linear"
    return "fine-tuned" if "," in data or "_ft_in1k" in name else "trained"


@cache
def counted() -> dict[str, tuple[str, str]]:
    """Parameters and multiply-accumulates that were counted before, by name."""
    with FILE.open(newline="") as text:
        return {row["name"]: (row["parameters"], row["gmacs"]) for row in csv.DictReader(text)}


@cache
def cost_of(architecture: str) -> tuple[int | str, str]:
    """Parameters, and 10^9 multiply-accumulates an image of the published size."""
    if architecture not in timm.list_models():
        return "", ""
    with torch.device("meta"):
        model = timm.create_model(architecture).eval()
        _, height, width = model.pretrained_cfg["input_size"]
        parameters = sum(parameter.numel() for parameter in model.parameters())
        try:
            with FlopCounterMode(display=False) as counter:
                model(torch.empty(1, 3, height, width))
        except Exception as error:  # another's code on a device that few models are made for
            print(f"{architecture}: not counted ({type(error).__name__}: {str(error)[:80]})")
            return parameters, ""
    return parameters, f"{counter.get_total_flops() / 2e9:.2f}"


def gated(hub: str) -> str:
    if not hub:
        return "no"
    return next((answer for pattern, (answer, _) in GATED.items() if re.search(pattern, hub)), "")


def row_of_tag(name: str) -> dict[str, Any]:
    own = get_pretrained_cfg(name)
    parameters, gmacs = counted().get(name) or cost_of(name.partition(".")[0])
    pixels = preprocess_from_pretrained(own.to_dict())
    _, height, width = own.input_size
    data = data_of(name.partition(".")[2])
    top1, source = results().get(name, ("", ""))
    return {
        "name": name,
        "hub": own.hf_hub_id or "",
        "url": "" if own.hf_hub_id else own.url,
        "family": family_of(name),
        "data": data,
        "licence": LICENCES.get(own.license, own.license),
        "gated": gated(own.hf_hub_id or ""),
        "height": height,
        "width": width,
        "fit": pixels["fit"],
        "crop_pct": own.crop_pct,
        "interpolation": pixels["interpolation"],
        "mean": " ".join(map(str, own.mean)),
        "std": " ".join(map(str, own.std)),
        "classes": own.num_classes,
        "parameters": parameters,
        "gmacs": gmacs,
        "top1": top1,
        "measured": measured(name, data) if top1 else "",
        "source": source,
    }


def row_of_entry(entry: Entry) -> dict[str, Any]:
    """Of an entry of vitkit's own catalog, which says where it lies and how it sees."""
    architecture = (entry.name if entry.name in known_tags() else entry.architecture).partition(".")[0]
    parameters, gmacs = counted().get(entry.name) or cost_of(architecture.removesuffix("_in21k"))
    top1, source = entry.top1, "torchvision" if "tv_" in entry.name else f"arXiv {entry.paper}"
    if top1 is None:
        top1, source = results().get(entry.name, ("", ""))
    tag = entry.name.partition(".")[2] or ("in21k" if entry.name.endswith("in21k") else "")
    data = data_of(tag, entry.paper)
    if not data and entry.paper == "2010.11929":  # Google's own repositories, fine-tuned as in the paper
        data = "ImageNet-21k, ImageNet-1k"
    facts = {"name": entry.name, "family": family_of(entry.name), "data": data, "gated": gated(entry.hub or "")}
    known = {"parameters": parameters, "gmacs": gmacs, "top1": top1, "source": source if top1 else ""}
    return dict.fromkeys(COLUMNS, "") | facts | known | {"measured": measured(entry.name, data) if top1 else ""}


@cache
def known_tags() -> list[str]:
    return [tag for module in MODULES for tag in timm.list_models(module=module, pretrained=True, include_tags=True)]


def rows(few: bool) -> Iterator[dict[str, Any]]:
    for entry in CATALOG.values():
        if not few or entry.name in FEW:
            yield row_of_entry(entry)
    for name in known_tags():
        if name not in CATALOG and (not few or name in FEW):
            yield row_of_tag(name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="three rows alone, which are printed")
    parser.add_argument("--recount", action="store_true", help="count costs anew: some minutes")
    options = parser.parse_args()
    is_smoke = options.smoke
    if options.recount:
        FILE.write_text(",".join(COLUMNS) + "\n")
    set_fused_attn(False)  # attention in two products, which are counted on every device
    found = list(rows(is_smoke))
    if is_smoke:
        print(*found, sep="\n")
        return
    with FILE.open("w", newline="", encoding="utf-8") as text:
        writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(found)
    print(f"{FILE}: {len(found)} rows, of timm {timm.__version__}")


if __name__ == "__main__":
    main()
