"""Of timm's pre-trained tags: the configuration that their tensors are read as is that of timm's model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from test_families import write_shapes

from tiny import some
from vitkit.errors import VitkitError
from vitkit.weights import inspect

MODULES = (
    *("vision_transformer", "deit", "eva", "beit", "naflexvit", "vision_transformer_hybrid"),
    "vision_transformer_relpos",
)
LARGEST = 3_000_000_000  # parameters; files of larger models cannot be mapped everywhere
TAGS = [tag for module in MODULES for tag in timm.list_models(module=module, pretrained=True, include_tags=True)]
FEW = {
    *(
        "vit_giant_patch14_dinov2",
        "vit_giantopt_patch16_siglip_256",
        "vit_giantopt_patch16_siglip_gap_256",
        "vit_giant_patch16_lingbot",
    ),
    *("aimv2_1b_patch14_224", "naflexvit_giant_patch16_radio_v3", "test_vit3"),
    *("vit_base_patch16_clip_quickgelu_224", "vit_base_patch16_rpn_224", "vit_base_patch16_sapiens2"),
}
GELU = {"GELU": "erf", "GELUTanh": "tanh", "GeluTanh": "tanh", "QuickGELU": "quick"}


def folder_of(model: Any, name: str, path: Path) -> Path:
    """As the hub has it, of tensors without numbers."""
    shapes = {key: tuple(tensor.shape) for key, tensor in model.state_dict().items()}
    write_shapes(shapes, path / "model.safetensors")
    pixels = {key: model.pretrained_cfg[key] for key in ("input_size", "mean", "std", "interpolation", "crop_pct")}
    described = {"architecture": name, "global_pool": model.global_pool, "pretrained_cfg": pixels}
    (path / "config.json").write_text(json.dumps(described))
    return path


def order_of(block: Any) -> str:
    return "res-post" if "Post" in type(block).__name__ else "pre"


def gelu_of(act: Any) -> str:
    return "tanh" if getattr(act, "approximate", "none") == "tanh" else GELU[type(act).__name__]


def test_pixels_that_no_patch_reads_are_told(tmp_path: Path) -> None:
    with torch.device("meta"):
        theirs = timm.create_model("vit_so400m_patch14_siglip_384")
    found = inspect(folder_of(theirs, "vit_so400m_patch14_siglip_384", tmp_path))
    assert found.config.image_size == (378, 378)
    assert found.report.assumed["image_size"].startswith("378x378, photographs are resized to that: of 384x384 pixels")


@pytest.mark.parametrize("name", some(dict.fromkeys(tag.partition(".")[0] for tag in TAGS), FEW))
def test_what_no_tensor_tells_is_timms(tmp_path: Path, name: str) -> None:
    with torch.device("meta"):
        theirs = timm.create_model(name)
    if sum(parameter.numel() for parameter in theirs.parameters()) > LARGEST:
        pytest.skip("too large")
    try:
        config = inspect(folder_of(theirs, name, tmp_path)).config
    except VitkitError as error:
        assert "this is " in str(error)
        return
    block = theirs.blocks[0]
    assert config.heads == block.attn.num_heads
    assert (config.qk_scale or config.head_size**-0.5) == pytest.approx(block.attn.scale)
    assert {config.norm_eps} == {
        part.eps for key, part in theirs.named_modules() if key.startswith("blocks.") and hasattr(part, "eps")
    }
    assert config.pool == {"avg": "gap"}.get(theirs.global_pool, theirs.global_pool)
    assert config.norm == order_of(block)
    if config.mlp_kind == "mlp":
        assert config.gelu == gelu_of(block.mlp.act)
    if config.pool == "map":
        assert (config.pool_heads or config.heads) == theirs.attn_pool.num_heads
    assert (config.rotary == "none") == (getattr(theirs, "rope", None) is None)
