"""Architectures after DeiT in timm's layout: timm's answers from files, at any resolution, in every way to compute."""

import copy
import functools
import json
import re
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import Tensor

import vitkit
from tiny import largest_difference, some
from vitkit.classifier import Classifier
from vitkit.errors import VitkitError
from vitkit.explanation import attention_maps
from weights.spoiling import Spoilt

SIDE = 64
# timm's name; what its tiny copy is built with beside the sizes; and what of it a bare file does not tell.
MODERN: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    # CLIP's and SigLIP's image encoders
    "vit_base_patch16_clip_224": ({}, {}),
    "vit_base_patch16_clip_quickgelu_224": ({}, {"gelu": "quick"}),
    "vit_base_patch16_siglip_224": ({}, {}),
    "vit_base_patch32_siglip_256": ({}, {"gelu": "tanh"}),
    "vit_base_patch16_siglip_gap_224": ({}, {}),
    "vit_base_patch32_siglip_gap_256": ({}, {"gelu": "tanh"}),
    "eva_giant_patch14_224": ({"patch_size": 16}, {}),
    "eva_giant_patch14_clip_224": ({"patch_size": 16}, {}),
    "eva02_enormous_patch14_clip_224": ({"patch_size": 16}, {"norm": "res-post"}),
    "eva02_tiny_patch14_224": ({"patch_size": 16}, {}),
    "eva02_base_patch14_224": ({"patch_size": 16}, {}),
    "eva02_base_patch16_clip_224": ({}, {}),
    "vit_small_patch16_dinov3": ({}, {"image_size": SIDE}),
    "vit_small_plus_patch16_dinov3_qkvb": ({}, {"image_size": SIDE}),
    "vit_base_patch16_lingbot": ({}, {"image_size": SIDE, "pool": "token"}),
    "vit_pe_core_base_patch16_224": ({"ref_feat_shape": (4, 4)}, {}),
    "vit_pe_core_gigantic_patch14_448": ({"patch_size": 16, "ref_feat_shape": (4, 4), "mlp_ratio": 3.0}, {}),
    "vit_pe_lang_large_patch14_448": ({"patch_size": 16, "ref_feat_shape": (4, 4)}, {}),
    "vit_pe_spatial_base_patch16_512": ({"ref_feat_shape": (4, 4)}, {}),
    "vit_small_patch16_rope_224": ({}, {"image_size": SIDE}),
    "vit_small_patch16_rope_mixed_224": ({}, {"image_size": SIDE}),
    "vit_small_patch16_rope_mixed_ape_224": ({}, {}),
    "vit_medium_patch16_rope_reg1_gap_256": ({}, {"image_size": SIDE}),
    "beit3_base_patch16_224": ({}, {}),
    "vit_base_patch16_radio_v3": ({}, {}),
    "vit_intern300m_patch14_448": ({"patch_size": 16}, {}),
    "vit_medium_patch16_gap_240": ({}, {}),
    "vit_betwixt_patch16_reg4_gap_256": ({}, {}),
    "aimv2_large_patch14_224": ({"patch_size": 16}, {}),
    "vit_base_patch16_rpn_224": ({}, {"norm": "res-post"}),
    "test_vit3": ({}, {}),
    "naflexvit_base_patch16_gap": ({}, {"image_size": SIDE}),
    "naflexvit_base_patch16_par_gap": ({"pos_embed_grid_size": (4, 4)}, {"image_size": SIDE}),
    "naflexvit_base_patch16_parfac_gap": ({}, {"image_size": SIDE}),
    "naflexvit_base_patch16_siglip": ({}, {"image_size": SIDE}),
    "naflexvit_base_patch16_radio_v3": (
        {"pos_embed_grid_size": (7, 7)},
        {"image_size": SIDE, "position_resize": "linear_aligned"},
    ),
    "naflexvit_so400m_patch16_radio_v4": ({"pos_embed_grid_size": (6, 6)}, {"image_size": SIDE}),
    "beit_base_patch16_224": ({"init_values": 0.1}, {}),
    "beitv2_large_patch16_224": ({"use_rel_pos_bias": False, "use_shared_rel_pos_bias": True}, {}),
    "vit_relpos_small_patch16_224": ({}, {"image_size": SIDE}),
    "vit_relpos_base_patch16_clsgap_224": ({}, {"image_size": SIDE}),
    "vit_relpos_medium_patch16_cls_224": ({}, {"image_size": SIDE}),
    "vit_relpos_medium_patch16_rpn_224": ({}, {"image_size": SIDE}),
    "vit_srelpos_small_patch16_224": ({}, {"image_size": SIDE}),
}
ROTARY = [name for name in MODERN if any(word in name for word in ("eva02_t", "eva02_b", "dinov3", "pe_", "rope"))]
QUICK = frozenset({  # one of each family
    *("eva02_base_patch16_clip_224", "vit_small_plus_patch16_dinov3_qkvb", "vit_pe_core_base_patch16_224"),
    *("vit_small_patch16_rope_mixed_224", "beit_base_patch16_224", "vit_relpos_medium_patch16_cls_224"),
    *("vit_base_patch16_radio_v3", "aimv2_large_patch14_224"),
    *("naflexvit_base_patch16_parfac_gap", "naflexvit_base_patch16_radio_v3", "vit_base_patch16_siglip_224"),
    *("vit_base_patch16_clip_224",),
})  # fmt: skip


@functools.cache
def theirs(name: str) -> Any:
    """timm's model with two small layers and random weights."""
    torch.manual_seed(0)
    sizes = {"img_size": SIDE, "embed_dim": 64, "depth": 2, "num_heads": 4, "num_classes": 5}
    model = timm.create_model(name, **sizes | MODERN[name][0]).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.3 * (parameter.ndim == 1) + 0.15 * torch.randn_like(parameter))
    return model


def folder_of(model: Any, name: str, path: Path) -> Path:
    """As the hub has it."""
    path.mkdir()
    save_file(model.state_dict(), path / "model.safetensors")
    pixels = {"input_size": [3, SIDE, SIDE], "mean": [0.5] * 3, "std": [0.5] * 3, "interpolation": "bicubic"}
    described = {
        "architecture": name,
        "num_classes": 5,
        "global_pool": model.global_pool,
        "model_args": {"img_size": SIDE, "num_heads": 4},
        "pretrained_cfg": {**pixels, "crop_pct": 1.0, "num_classes": 5},
    }
    (path / "config.json").write_text(json.dumps(described))
    return path


def images(side: int = SIDE) -> Tensor:
    return torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(1))


def loaded(name: str, path: Path, **fields: Any) -> Classifier:
    save_file(theirs(name).state_dict(), path / "bare.safetensors")
    return vitkit.load(path / "bare.safetensors", heads=4, **MODERN[name][1] | fields)


@pytest.mark.parametrize("name", MODERN)
def test_answers_are_timms(tmp_path: Path, name: str) -> None:
    reference = theirs(name)
    told, bare = vitkit.load(folder_of(reference, name, tmp_path / "folder")), loaded(name, tmp_path)
    with torch.inference_mode():
        features = reference.forward_features(images())
        # Those that only pooling normalises are as large as they like.
        large = max(1, features.abs().max()) if isinstance(reference.norm, torch.nn.Identity) else 1
        for ours in (bare.model, told.model):
            assert largest_difference(ours(images()), reference(images())) <= 1e-5
            assert largest_difference(ours.forward_features(images()), features) <= 1e-5 * large
            read = ours.forward_head(ours.forward_features(images()), pre_logits=True)
            assert largest_difference(read, reference.forward_head(features, pre_logits=True)) <= 1e-5
    if name in ROTARY:
        assert bare.report.format.startswith("timm (")
        assert ", as in " in bare.report.assumed["rotary"] and "if wrong: rotary" in bare.report.assumed["rotary"]


@pytest.mark.parametrize("name", some(ROTARY, QUICK))
def test_rotary_positions_at_another_resolution_are_timms(tmp_path: Path, name: str) -> None:
    side = 112
    reference = copy.deepcopy(theirs(name))
    ours = vitkit.load(folder_of(reference, name, tmp_path / "folder"), image_size=side).model
    reference.set_input_size(img_size=(side, side))
    if hasattr(reference.rope, "feat_shape") and reference.dynamic_img_size:
        reference.rope.feat_shape = None
    with torch.inference_mode():
        assert largest_difference(ours(images(side)), reference(images(side))) <= 1e-5


def test_rotary_positions_of_an_oblong_grid_are_timms() -> None:
    for name in ("eva02_base_patch14_224", "vit_pe_core_base_patch16_224", "vit_small_patch16_dinov3"):
        reference = timm.create_model(name, img_size=(64, 96), patch_size=16, embed_dim=64, depth=2, num_heads=4)
        rope = reference.rope.get_embed((4, 6))
        fields = {
            "eva": {"rotary": "eva", "rotary_grid": (16, 16)},
            "pe": {"rotary": "axial", "rotary_grid": (14, 14), "rotary_offset": 1},
            "dinov3": {"rotary": "dinov3", "rotary_base": 100.0},
        }["dinov3" if "dinov3" in name else "pe" if "_pe_" in name else "eva"]
        config = vitkit.ViTConfig(image_size=(64, 96), hidden_size=64, heads=4, layers=2, **fields)
        turn = vitkit.model.position.Rotary(config)(0)
        there = torch.cat([turn.sin.abs(), turn.cos], dim=-1)[1:]
        assert largest_difference(there, torch.cat([rope[:, :16].abs(), rope[:, 16:]], dim=-1)) <= 1e-6


@pytest.mark.parametrize("name", [name for name in MODERN if "naflex" in name and "_par_" not in name])
def test_learned_positions_of_an_oblong_grid_are_timms(tmp_path: Path, name: str) -> None:
    reference, oblong = theirs(name), torch.randn(1, 3, 48, 80)
    with torch.inference_mode():
        ours = loaded(name, tmp_path, image_size=(48, 80)).model
        assert largest_difference(ours(oblong), reference(oblong)) <= 1e-5


@pytest.mark.parametrize(("name", "side"), [("beit_base_patch16_224", 160), ("beitv2_large_patch16_224", 32)])
@pytest.mark.filterwarnings("ignore::UserWarning:timm")  # of torch, on how timm's interpolation indexes
def test_tables_of_biases_at_another_resolution_are_timms(tmp_path: Path, name: str, side: int) -> None:
    reference = copy.deepcopy(theirs(name))
    ours = loaded(name, tmp_path, image_size=side)
    reference.set_input_size(img_size=(side, side))
    with torch.inference_mode():
        assert largest_difference(ours.model(images(side)), reference(images(side))) <= 1e-5
    assert "BEiT" in str(ours.report)


class _Watch(torch.overrides.TorchFunctionMode):
    """Writes fused attention out, and keeps its matrices."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.nn.functional.scaled_dot_product_attention:
            q, k = args[:2]
            logits = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
            mask = (kwargs or {}).get("attn_mask")
            self.seen.append((logits if mask is None else logits + mask).softmax(dim=-1))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", [*ROTARY, "beit_base_patch16_224", "vit_relpos_base_patch16_clsgap_224"])
def test_attention_maps_are_timms(tmp_path: Path, name: str) -> None:
    watch = _Watch()
    with torch.inference_mode(), watch:
        theirs(name)(images())
    maps = list(attention_maps(loaded(name, tmp_path).model, images()))
    for own, seen in zip(maps, watch.seen, strict=False):
        assert largest_difference(own, seen) <= 1e-5
        assert torch.allclose(own.sum(dim=-1), torch.ones(()), atol=1e-5)
    assert len(maps) == 2


@pytest.mark.parametrize("name", some(MODERN, QUICK))
def test_a_tensor_that_is_missing_or_misshapen_is_named(tmp_path: Path, name: str) -> None:
    save_file(theirs(name).state_dict(), tmp_path / "x.safetensors")
    file, told = Spoilt(tmp_path / "x.safetensors"), {"heads": 4} | MODERN[name][1]
    # Some models have them and some have not: the report says what was taken, and by the absence of what.
    unsure = (
        {"pos_embed", "rope.freqs"} if "_rope_" in name else {"reg_token"} if re.search(r"_reg\d_gap_", name) else set()
    )
    unsure |= {"cls_token"} if "relpos" in name else set()
    for spoiled in (spoiled for spoiled in file.tensors if not spoiled.startswith("blocks.1.")):
        if spoiled in unsure:
            assert spoiled in str(file.without(spoiled, **told).report.assumed)
        else:
            with pytest.raises(VitkitError, match=_layer(spoiled)):
                file.without(spoiled, **told)
        if len(file.tensors[spoiled].shape) > 1:
            of_either = _layer(spoiled).replace("blocks.0", "blocks.[01]")  # of two layers neither is the majority
            with pytest.raises(VitkitError, match=of_either):
                file.widened(spoiled, **told)


def _layer(tensor: str) -> str:
    return tensor.removesuffix(".weight").removesuffix(".bias")
