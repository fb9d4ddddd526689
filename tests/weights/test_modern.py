"""Architectures after DeiT in timm's layout and under their authors' names: timm's answers, at any resolution."""

import copy
import functools
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import save_file
from timm.models.eva import checkpoint_filter_fn
from torch import Tensor

import vitkit
from refusals import refused
from tiny import largest_difference, some
from vitkit.classifier import Classifier
from vitkit.errors import VitkitError
from vitkit.explanation import attention_maps
from vitkit.weights import inspect
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


def made(name: str, **fields: Any) -> Any:
    """timm's model with two small layers and random weights."""
    torch.manual_seed(0)
    sizes = {"img_size": SIDE, "embed_dim": 64, "depth": 2, "num_heads": 4}
    model = timm.create_model(name, **sizes | fields).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.3 * (parameter.ndim == 1) + 0.15 * torch.randn_like(parameter))
    return model


@functools.cache
def theirs(name: str) -> Any:
    return made(name, num_classes=5, **MODERN[name][0])


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
    untold = MODERN[name][1].keys() & {"gelu", "norm", "position_resize"}
    sizes = {"heads": 4, **{field: own for field, own in MODERN[name][1].items() if field not in untold}}
    assert untold <= inspect(tmp_path / "bare.safetensors", **sizes).report.assumed.keys(), "assumed aloud"
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


NAMES = {
    "vit_small_patch16_dinov3_qkvb": {},
    "vit_small_plus_patch16_dinov3_qkvb": {},
    "eva02_tiny_patch14_224": {"patch_size": 16},
    "eva02_base_patch14_224": {"patch_size": 16},
    "vit_pe_core_base_patch16_224": {"ref_feat_shape": (4, 4), "num_classes": 24},
}


def as_dinov3(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """timm's names undone: https://github.com/facebookresearch/dinov3's, with a bias of k that its mask takes away."""
    found, is_gated = {}, any("fc1_g" in name for name in state)
    for name, own in state.items():
        name = name.replace("gamma_1", "ls1.gamma").replace("gamma_2", "ls2.gamma")
        name = name.replace("reg_token", "storage_tokens").replace("mlp.fc1_g", "mlp.w1")
        name = name.replace("mlp.fc2", "mlp.w3" if is_gated else "mlp.fc2").replace("mlp.fc1_x", "mlp.w2")
        if name.endswith("q_bias"):
            ahead = name.removesuffix("q_bias")
            v = state[f"{ahead}v_bias"]
            found[f"{ahead}qkv.bias"] = torch.cat([own, torch.randn_like(own), v])
            found[f"{ahead}qkv.bias_mask"] = torch.cat([own**0, 0 * own, own**0])
        elif not name.endswith("v_bias"):
            found[name] = own
    return {**found, "rope_embed.periods": periods(100.0), "mask_token": torch.zeros(1, 64)}


def periods(base: float) -> Tensor:
    """Of heads of 16 features, in the authors' way."""
    return base ** (2 * torch.arange(4) / 8)


def as_eva02(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """timm's names undone: https://github.com/baaivision/EVA's."""
    swaps = (
        *((".mlp.norm.", ".mlp.ffn_ln."), (".attn.norm.", ".attn.inner_attn_ln."), (".mlp.fc2.", ".mlp.w3.")),
        *((".mlp.fc1_g.", ".mlp.w1."), (".mlp.fc1_x.", ".mlp.w2."), (".mlp.fc1.", ".mlp.w12.")),
        *((".q_proj.bias", ".q_bias"), (".v_proj.bias", ".v_bias")),
    )
    found = {}
    for name, own in state.items():
        for timms, theirs in swaps:
            name = name.replace(timms, theirs)
        found[name] = own
    return {**found, "rope.freqs_cos": torch.zeros(16, 16), "blocks.0.attn.rope.freqs_sin": torch.zeros(16, 16)}


def as_perception_encoder(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """timm's names undone: https://github.com/facebookresearch/perception_models's, with a text encoder beside them."""
    swaps = (
        *(("patch_embed.proj", "conv1"), ("cls_token", "class_embedding"), ("pos_embed", "positional_embedding")),
        *(("norm_pre", "ln_pre"), ("blocks.", "transformer.resblocks."), (".norm1", ".ln_1"), (".norm2", ".ln_2")),
        *(("attn_pool.norm", "attn_pool.layernorm"), ("attn_pool.latent", "attn_pool.probe"), ("qkv.", "in_proj_")),
        *(("attn_pool.proj", "attn_pool.attn.out_proj"), ("attn.proj", "attn.out_proj"), ("mlp.fc1", "mlp.c_fc")),
        *(("mlp.fc2", "mlp.c_proj"), ("gamma_1", "ls_1.gamma"), ("gamma_2", "ls_2.gamma")),
    )
    found = {"visual.proj": state["head.weight"].T.contiguous(), "token_embedding.weight": torch.zeros(3, 4)}
    for kind in ("weight", "bias"):
        parts = [state[f"attn_pool.{part}.{kind}"] for part in ("q", "kv")]
        found[f"visual.attn_pool.attn.in_proj_{kind}"] = torch.cat(parts)
    for name, own in state.items():
        if name.startswith(("head.", "attn_pool.q.", "attn_pool.kv.")):
            continue
        for timms, their in swaps:
            name = name.replace(timms, their)
        name = f"ln_post.{name.removeprefix('norm.')}" if name.startswith("norm.") else name
        flat = {"class_embedding": own.flatten(), "positional_embedding": own[0]}
        found[f"visual.{name}"] = flat.get(name, own).contiguous()
    return found


def published(name: str, model: Any) -> dict[str, Tensor]:
    state = {key: own.clone() for key, own in model.state_dict().items()}
    if "pe_core" in name:
        return as_perception_encoder(state)
    return as_dinov3(state) if "dinov3" in name else as_eva02(state)


def given(name: str) -> dict[str, Any]:
    return {"image_size": SIDE, "pool": "gap"} if "dinov3" in name else {"heads": 4}


@pytest.mark.parametrize("name", NAMES)
def test_files_under_their_authors_names_answer_as_timm_does(tmp_path: Path, name: str) -> None:
    model = made(name, **{"num_classes": 0, **NAMES[name]})
    state = published(name, model)
    again = checkpoint_filter_fn(dict(state), model)
    assert {key: own.shape for key, own in again.items()} == {key: own.shape for key, own in model.state_dict().items()}
    own_head = ("head.bias",)  # the authors' projection has no bias, and is no head here
    assert all(torch.equal(own, again[key]) for key, own in model.state_dict().items() if key not in own_head)
    save_file(state, tmp_path / "x.safetensors")
    found = vitkit.load(tmp_path / "x.safetensors", **given(name))
    with torch.inference_mode():
        assert largest_difference(found.model.forward_features(images()), model.forward_features(images())) <= 1e-5
        tokens = model.forward_features(images())
        assert largest_difference(found.model(images()), model.forward_head(tokens, pre_logits=True)) <= 1e-5
    told = {"dinov3": "DINOv3", "eva02": "EVA-02", "pe_core": "Perception Encoder"}
    assert found.report.format == next(family for part, family in told.items() if part in name)
    assert "rotary" in found.report.assumed


def test_the_base_of_dinov3s_rotary_positions_is_what_its_periods_tell(tmp_path: Path) -> None:
    torch.manual_seed(0)
    name, file = "vit_small_patch16_dinov3_qkvb", tmp_path / "x.safetensors"
    sizes = {"img_size": SIDE, "embed_dim": 64, "depth": 2, "num_heads": 4, "num_classes": 0}
    model = timm.create_model(name, **sizes, rope_temperature=40.0).eval()
    state = published(name, model) | {"rope_embed.periods": periods(40.0).bfloat16()}
    save_file(state, file)
    found = vitkit.load(file, **given(name))
    with torch.inference_mode():
        assert largest_difference(found.model.forward_features(images()), model.forward_features(images())) <= 1e-5
    save_file(state | {"rope_embed.periods": periods(100.0).flip(0)}, file)
    with refused("weights.tensor-invalid", "periods"):
        vitkit.load(file, **given(name))


def big_vision() -> dict[str, np.ndarray]:
    """As https://github.com/google-research/big_vision publishes SigLIP, both encoders."""
    draw, D, H, F = np.random.default_rng(0), 64, 4, 96

    def noise(*shape: int) -> np.ndarray:
        return (0.15 * draw.standard_normal(shape)).astype(np.float32)

    def norm(at: str) -> dict[str, np.ndarray]:
        return {f"{at}/scale": 1 + noise(D), f"{at}/bias": noise(D)}

    def attention(at: str) -> dict[str, np.ndarray]:
        parts = ("query", "key", "value")
        kernels = {f"{at}/{part}/kernel": noise(D, H, D // H) for part in parts}
        biases = {f"{at}/{part}/bias": noise(H, D // H) for part in parts}
        return {**kernels, **biases, f"{at}/out/kernel": noise(H, D // H, D), f"{at}/out/bias": noise(D)}

    def mlp(at: str) -> dict[str, np.ndarray]:
        first = {f"{at}/Dense_0/kernel": noise(D, F), f"{at}/Dense_0/bias": noise(F)}
        return {**first, f"{at}/Dense_1/kernel": noise(F, D), f"{at}/Dense_1/bias": noise(D)}

    images, head = "params/img", "params/img/MAPHead_0"
    found = {f"{images}/embedding/kernel": noise(16, 16, 3, D), f"{images}/embedding/bias": noise(D)}
    found |= {f"{images}/pos_embedding": noise(1, 16, D), f"{head}/probe": noise(1, 1, D)}
    found |= norm(f"{images}/Transformer/encoder_norm") | norm(f"{head}/LayerNorm_0")
    found |= attention(f"{head}/MultiHeadDotProductAttention_0") | mlp(f"{head}/MlpBlock_0")
    for layer in range(2):
        at = f"{images}/Transformer/encoderblock_{layer}"
        found |= norm(f"{at}/LayerNorm_0") | attention(f"{at}/MultiHeadDotProductAttention_0")
        found |= norm(f"{at}/LayerNorm_1") | mlp(f"{at}/MlpBlock_0")
    return {**found, "params/t": noise(1), "params/b": noise(1), "params/txt/Embed_0/embedding": noise(10, D)}


def test_siglips_npz_answers_as_timm_does(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", **big_vision())
    sizes = {"img_size": SIDE, "embed_dim": 64, "depth": 2, "num_heads": 4, "mlp_ratio": 1.5, "num_classes": 0}
    model = timm.create_model("vit_base_patch16_siglip_224", act_layer="gelu_tanh", **sizes).eval()
    model.load_pretrained(str(tmp_path / "x.npz"))
    found = vitkit.load(tmp_path / "x.npz")
    with torch.inference_mode():
        assert largest_difference(found.model(images()), model(images())) <= 1e-5
    assert "params/txt/Embed_0/embedding" in found.report.dropped


@pytest.mark.parametrize(
    "name",
    ["vit_small_plus_patch16_dinov3_qkvb", "eva02_base_patch14_224", "vit_pe_core_base_patch16_224", "SigLIP's npz"],
)
def test_every_tensor_of_the_authors_that_is_missing_or_misshapen_is_named(tmp_path: Path, name: str) -> None:
    if name == "SigLIP's npz":
        np.savez(tmp_path / "x.npz", **big_vision())
        file, told = Spoilt(tmp_path / "x.npz"), {}
    else:
        save_file(published(name, made(name, **{"num_classes": 0, **NAMES[name]})), tmp_path / "x.safetensors")
        file, told = Spoilt(tmp_path / "x.safetensors"), given(name)
    unread = (".1.", "rblock_1", "mask_token", "rope.freqs", "visual.proj", "token_embedding", "params/t", "params/b")
    for spoiled in (key for key in file.tensors if not any(part in key for part in unread)):
        with pytest.raises(VitkitError, match=spoiled.removesuffix("weight").removesuffix("bias")):
            file.without(spoiled, **told)
        if "periods" not in spoiled:
            with pytest.raises(VitkitError):
                file.widened(spoiled, **told)
