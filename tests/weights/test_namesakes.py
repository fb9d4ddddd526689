"""Architectures that share names and shapes: what loads is right or says what it assumed, or else is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from test_families import write_shapes

import tiny
from tiny import build, randomise, some
from vitkit.errors import VitkitError
from vitkit.model import VisionTransformer, config_for
from vitkit.weights import catalog as classes
from vitkit.weights import class_names, inspect, load, unique

REPRESENTATIVES = (
    *("vit_tiny_patch16_224", "vit_tiny_r_s16_p8_224", "flexivit_small", "vit_small_patch14_dinov2"),
    *("vit_small_patch14_reg4_dinov2", "vit_base_patch16_224_miil", "vit_base_patch16_siglip_gap_224"),
    *("vit_base_patch16_siglip_224", "vit_base_patch32_siglip_256", "vit_base_patch16_clip_224"),
    *("vit_pe_core_base_patch16_224", "vit_pe_lang_large_patch14_448", "vit_pe_spatial_base_patch16_512"),
    *("vit_base_patch32_siglip_gap_256", "vit_base_patch16_rpn_224", "vit_base_patch16_gap_224"),
    *("deit_tiny_distilled_patch16_224", "deit3_small_patch16_224", "vit_base_patch16_clip_quickgelu_224"),
    *("vit_base_patch16_dinov3", "beit_base_patch16_224", "eva02_tiny_patch14_224"),
)
# Smaller copies of the others are in test_modern.py.
FEW = (
    *("vit_tiny_patch16_224", "vit_tiny_r_s16_p8_224", "vit_small_patch14_reg4_dinov2"),
    *("vit_base_patch32_siglip_gap_256", "vit_base_patch16_gap_224"),
    *("vit_pe_spatial_base_patch16_512", "vit_base_patch16_rpn_224"),
)


def truth(model: Any) -> dict[str, Any]:
    """What timm's model computes, as fields of a configuration."""
    block = model.blocks[0]
    act = type(block.mlp.act).__name__
    return {
        "heads": block.attn.num_heads,
        "norm_eps": block.norm1.eps,
        "gelu": {"GELU": "erf", "SiLU": "erf", "GELUTanh": "tanh", "QuickGELU": "quick"}.get(act, act),
        "norm": "res-post" if type(block).__name__ == "ResPostBlock" else "pre",
        "qk_scale": None if block.attn.scale == (model.embed_dim // block.attn.num_heads) ** -0.5 else block.attn.scale,
    }


@pytest.mark.parametrize("name", some(REPRESENTATIVES, FEW))
def test_what_loads_is_right_or_says_what_it_assumed(tmp_path: Path, name: str) -> None:
    side = 64 if "_r_" in name else 4 * int(name.partition("patch")[2].partition("_")[0] or 16)
    torch.manual_seed(0)
    model = timm.create_model(name, depth=1, num_classes=7, img_size=side)
    randomise(model)
    torch.save(model.eval().state_dict(), tmp_path / "x.pth")
    # A layer less changes what is known of the heads: they are given, unless they are what is assumed of this name.
    has_heads = {} if name == "vit_base_patch16_gap_224" else {"heads": model.blocks[0].attn.num_heads}
    try:
        found = load(tmp_path / "x.pth", **has_heads)
    except VitkitError:
        return
    config, true = found.model.config, truth(model)
    wrong = {field for field, value in true.items() if getattr(config, field) != value}
    assert wrong <= set(found.report.assumed), wrong
    options = {field: true[field] for field in wrong}
    if "_pe_" in name:  # assumed: the grid of its own positions
        assert "rotary" in found.report.assumed
        options["rotary_grid"] = tuple(model.rope.ref_feat_shape)
    ours = load(tmp_path / "x.pth", **{**has_heads, **options}).model
    images = torch.randn(2, 3, *config.image_size, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        theirs = model(images)
        assert (ours(images) - theirs).abs().max() <= 1e-4 * theirs.abs().max()


def test_the_heads_of_i_jepa_s_namesake_are_assumed(tmp_path: Path) -> None:
    with torch.device("meta"):
        state = timm.create_model("vit_base_patch16_gap_224", num_classes=7).state_dict()
    file = write_shapes({name: tuple(tensor.shape) for name, tensor in state.items()}, tmp_path / "x.safetensors")
    plan = inspect(file)
    assert plan.config.heads == 12 and "has the same tensors and 16" in plan.report.assumed["heads"]
    plan = inspect(file, heads=16, gelu="erf")
    assert plan.config.heads == 16 and not {"heads", "gelu"} & set(plan.report.assumed)


def test_a_scale_that_no_file_keeps_is_assumed_of_tutorials_files_alone(tmp_path: Path) -> None:
    state = build(image_size=(16, 16), qk_scale=0.7).state_dict()
    torch.save(state, tmp_path / "x.pth")
    plan = inspect(tmp_path / "x.pth", heads=4)
    assert plan.config.qk_scale is None and set(plan.report.assumed) == {"preprocess", "classes"}
    state["pos_embedding.pos_embedding"] = state.pop("pos_embed")
    torch.save(state, tmp_path / "x.pth")
    assert inspect(tmp_path / "x.pth", heads=4).report.assumed["qk_scale"].startswith("1 / sqrt(8)")
    told = load(tmp_path / "x.pth", heads=4, qk_scale=0.7)
    assert told.report is not None and "qk_scale" not in told.report.assumed
    assert told.model.blocks[0].attn.scale == 0.7  # type: ignore[union-attr]


NAMES = ("daisy", "dandelion", "roses")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    model = tiny.randomise(VisionTransformer(config_for("vit_micro_patch8_16", 3)))
    torch.save(model.state_dict(), tmp_path / "model.pth")
    return tmp_path / "model.pth"


@pytest.mark.parametrize(
    "written", [{"2": "roses", "1": "dandelion", "0": "daisy"}, {"roses": 2, "daisy": 0, "dandelion": 1}], ids=str
)
def test_it_is_read_in_both_directions_and_names_that_are_given_come_first(
    checkpoint: Path, written: dict[str, object]
) -> None:
    (checkpoint.parent / "class_indices.json").write_text(json.dumps(written))
    classifier = load(checkpoint)
    assert classifier.classes == NAMES
    assert "classes" not in classifier.report.assumed
    assert any("class_indices.json" in note for note in classifier.report.notes)
    assert load(checkpoint, classes=("a", "b", "c")).classes == ("a", "b", "c")
    assert load(checkpoint, 5).classes == ("0", "1", "2", "3", "4"), "another head has other classes"


@pytest.mark.parametrize(
    "written",
    [
        {str(i): f"class {i}" for i in range(4)},
        {"1": "daisy", "2": "dandelion", "3": "roses"},
        {"daisy": 0, "dandelion": 0, "roses": 2},
        ["daisy", "dandelion", "roses"],
        "{",
    ],
    ids=str,
)
def test_one_that_does_not_fit_is_passed_over_and_said_to_be(checkpoint: Path, written: object) -> None:
    file = checkpoint.parent / "class_indices.json"
    file.write_text(written if isinstance(written, str) else json.dumps(written))
    classifier = load(checkpoint)
    assert classifier.classes == ("0", "1", "2")
    assert f"{file} was ignored" in classifier.report.assumed["classes"], "commands show what is assumed"


def test_the_classes_of_imagenet_21k_have_wordnets_names_in_googles_order() -> None:
    from timm.data import ImageNetInfo

    names, told = class_names(21843)
    theirs = ImageNetInfo("imagenet21k_goog")
    assert list(names) == [theirs.index_to_description(i).partition(",")[0].strip() for i in range(21843)]
    assert "ImageNet-21k's names" in told
    assert len(set(unique(names))) == 21843
    licence = Path(classes.__file__).with_name("imagenet21k_classes.LICENSE").read_text(encoding="utf-8")
    assert "WordNet 3.0 Copyright 2006 by Princeton University" in licence
