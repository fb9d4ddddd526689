"""Architectures that share names and shapes: what loads is right or says what it assumed, or else is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from timm.models.vision_transformer import VisionTransformer as TimmViT

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
    *("vit_tiny_patch16_224", "vit_tiny_r_s16_p8_224", "flexivit_small", "vit_small_patch14_reg4_dinov2"),
    *("deit_tiny_distilled_patch16_224", "deit3_small_patch16_224", "vit_base_patch32_siglip_gap_256"),
    *("vit_base_patch16_gap_224", "vit_pe_spatial_base_patch16_512", "eva02_tiny_patch14_224"),
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
    state = {name: torch.zeros(tensor.shape, dtype=torch.float16) for name, tensor in state.items()}
    torch.save(state, tmp_path / "x.pth")
    plan = inspect(tmp_path / "x.pth")
    assert plan.config.heads == 12 and "has the same tensors and 16" in plan.report.assumed["heads"]
    plan = inspect(tmp_path / "x.pth", heads=16, gelu="erf")
    assert plan.config.heads == 16 and not {"heads", "gelu"} & set(plan.report.assumed)


def test_a_residual_post_norm_is_not_taken_for_the_paper_s_in_silence(tmp_path: Path) -> None:
    model = timm.create_model("vit_base_patch16_rpn_224", depth=1, num_classes=7, img_size=64)
    torch.save(model.state_dict(), tmp_path / "x.pth")
    assert "vit_base_patch16_rpn_224" in load(tmp_path / "x.pth", heads=12).report.assumed["norm"]  # type: ignore[union-attr]


@pytest.mark.parametrize("is_tutorial_s", [True, False])
def test_a_scale_that_no_file_keeps_is_assumed(tmp_path: Path, is_tutorial_s: bool) -> None:
    state = build(image_size=(16, 16), qk_scale=0.7).state_dict()
    if is_tutorial_s:
        state["pos_embedding.pos_embedding"] = state.pop("pos_embed")
    torch.save(state, tmp_path / "x.pth")
    plan = inspect(tmp_path / "x.pth", heads=4)
    assert plan.config.qk_scale is None
    assert ("qk_scale" in plan.report.assumed) == is_tutorial_s
    if is_tutorial_s:
        assert plan.report.assumed["qk_scale"].startswith("1 / sqrt(8)")
        told = load(tmp_path / "x.pth", heads=4, qk_scale=0.7)
        assert told.report is not None and "qk_scale" not in told.report.assumed
        assert told.model.blocks[0].attn.scale == 0.7  # type: ignore[union-attr]


def test_an_ordinary_file_is_not_doubted(tmp_path: Path) -> None:
    sizes: dict[str, Any] = {"img_size": 16, "patch_size": 4, "embed_dim": 32, "depth": 2, "num_heads": 4}
    torch.save(TimmViT(**sizes, num_classes=7).state_dict(), tmp_path / "x.pth")
    assert set(inspect(tmp_path / "x.pth", heads=4).report.assumed) == {"preprocess", "classes"}


# --- class_indices.json beside a checkpoint, as many training scripts write it, names its classes -----


NAMES = ("daisy", "dandelion", "roses")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    model = tiny.randomise(VisionTransformer(config_for("vit_micro_patch8_16", 3)))
    torch.save(model.state_dict(), tmp_path / "model.pth")
    return tmp_path / "model.pth"


@pytest.mark.parametrize(
    "written",
    [
        {"0": "daisy", "1": "dandelion", "2": "roses"},
        {"daisy": 0, "dandelion": 1, "roses": 2},
        {"2": "roses", "1": "dandelion", "0": "daisy"},
        {"roses": 2, "daisy": 0, "dandelion": 1},
    ],
    ids=str,
)
def test_it_is_read_in_both_directions_and_the_report_says_so(checkpoint: Path, written: dict[str, object]) -> None:
    (checkpoint.parent / "class_indices.json").write_text(json.dumps(written))
    classifier = load(checkpoint)
    assert classifier.classes == NAMES
    assert "classes" not in classifier.report.assumed
    assert "the class names are those of class_indices.json next to the weights" in classifier.report.notes


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ({"0": "daisy", "1": "roses"}, "has 2 names for 3 classes"),
        ({str(i): f"class {i}" for i in range(4)}, "has 4 names for 3 classes"),
        ({"1": "daisy", "2": "dandelion", "3": "roses"}, "has no name for each class number"),
        ({"daisy": 0, "dandelion": 0, "roses": 2}, "has no name for each class number"),
        ({"daisy": "a", "dandelion": "b", "roses": "c"}, "has no name for each class number"),
        (["daisy", "dandelion", "roses"], "has no name for each class number"),
        ("{", "has no name for each class number"),
    ],
    ids=str,
)
def test_one_that_does_not_fit_is_passed_over_and_said_to_be(checkpoint: Path, written: object, said: str) -> None:
    text = written if isinstance(written, str) else json.dumps(written)
    (checkpoint.parent / "class_indices.json").write_text(text)
    classifier = load(checkpoint)
    assert classifier.classes == ("0", "1", "2")
    assumed = classifier.report.assumed["classes"]
    assert assumed.startswith("numbers") and said in assumed
    assert f"{checkpoint.parent / 'class_indices.json'} was ignored" in assumed, "commands show what is assumed"


def test_names_that_are_given_come_first(checkpoint: Path) -> None:
    (checkpoint.parent / "class_indices.json").write_text(json.dumps(dict(enumerate(NAMES))))
    assert load(checkpoint, classes=("a", "b", "c")).classes == ("a", "b", "c")
    assert load(checkpoint, 5).classes == ("0", "1", "2", "3", "4"), "another head has other classes"


def test_the_classes_of_imagenet_21k_have_wordnets_names_in_googles_order() -> None:
    from timm.data import ImageNetInfo

    names, told = class_names(21843)
    theirs = ImageNetInfo("imagenet21k_goog")
    assert list(names) == [theirs.index_to_description(i).partition(",")[0].strip() for i in range(21843)]
    assert "ImageNet-21k's names" in told
    assert len(set(unique(names))) == 21843
    licence = Path(classes.__file__).with_name("imagenet21k_classes.LICENSE").read_text(encoding="utf-8")
    assert "WordNet 3.0 Copyright 2006 by Princeton University" in licence
