"""Files under their authors' names: DINOv3 and EVA-02 answer as timm does with what its own filter makes of them."""

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
from vitkit.errors import VitkitError
from weights.spoiling import Spoilt

SIDE = 64
NAMES = {
    "vit_small_patch16_dinov3_qkvb": {},
    "vit_small_plus_patch16_dinov3_qkvb": {},
    "eva02_tiny_patch14_224": {"patch_size": 16},
    "eva02_base_patch14_224": {"patch_size": 16},
    "vit_pe_core_base_patch16_224": {"ref_feat_shape": (4, 4), "num_classes": 24},
}


def model_of(name: str) -> Any:
    torch.manual_seed(0)
    sizes = {"img_size": SIDE, "embed_dim": 64, "depth": 2, "num_heads": 4, "num_classes": 0}
    model = timm.create_model(name, **sizes | NAMES[name]).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.3 * (parameter.ndim == 1) + 0.15 * torch.randn_like(parameter))
    return model


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


def theirs(name: str, model: Any) -> dict[str, Tensor]:
    state = {key: own.clone() for key, own in model.state_dict().items()}
    if "pe_core" in name:
        return as_perception_encoder(state)
    return as_dinov3(state) if "dinov3" in name else as_eva02(state)


def given(name: str) -> dict[str, Any]:
    return {"image_size": SIDE, "pool": "gap"} if "dinov3" in name else {"heads": 4}


@pytest.mark.parametrize("name", NAMES)
def test_answers_are_timms(tmp_path: Path, name: str) -> None:
    model = model_of(name)
    state = theirs(name, model)
    again = checkpoint_filter_fn(dict(state), model)
    assert {key: own.shape for key, own in again.items()} == {key: own.shape for key, own in model.state_dict().items()}
    own_head = ("head.bias",)  # the authors' projection has no bias, and is no head here
    assert all(torch.equal(own, again[key]) for key, own in model.state_dict().items() if key not in own_head)
    save_file(state, tmp_path / "x.safetensors")
    found = vitkit.load(tmp_path / "x.safetensors", **given(name))
    images = torch.randn(2, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        assert largest_difference(found.model.forward_features(images), model.forward_features(images)) <= 1e-5
        tokens = model.forward_features(images)
        assert largest_difference(found.model(images), model.forward_head(tokens, pre_logits=True)) <= 1e-5
    told = {"dinov3": "DINOv3", "eva02": "EVA-02", "pe_core": "Perception Encoder"}
    assert found.report.format == next(family for part, family in told.items() if part in name)
    assert "rotary" in found.report.assumed


def test_the_base_of_dinov3s_rotary_positions_is_what_its_periods_tell(tmp_path: Path) -> None:
    torch.manual_seed(0)
    name, file = "vit_small_patch16_dinov3_qkvb", tmp_path / "x.safetensors"
    sizes = {"img_size": SIDE, "embed_dim": 64, "depth": 2, "num_heads": 4, "num_classes": 0}
    model = timm.create_model(name, **sizes, rope_temperature=40.0).eval()
    state = theirs(name, model) | {"rope_embed.periods": periods(40.0).bfloat16()}
    save_file(state, file)
    images = torch.randn(2, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(1))
    found = vitkit.load(file, **given(name))
    with torch.inference_mode():
        assert largest_difference(found.model.forward_features(images), model.forward_features(images)) <= 1e-5
    save_file(state | {"rope_embed.periods": periods(100.0).flip(0)}, file)
    with refused("weights.tensor-invalid", "periods"):
        vitkit.load(file, **given(name))


@pytest.mark.parametrize(
    "name",
    some(NAMES, ["vit_small_plus_patch16_dinov3_qkvb", "eva02_base_patch14_224", "vit_pe_core_base_patch16_224"]),
)
def test_every_tensor_that_is_missing_or_misshapen_is_named(tmp_path: Path, name: str) -> None:
    save_file(theirs(name, model_of(name)), tmp_path / "x.safetensors")
    file, unread = Spoilt(tmp_path / "x.safetensors"), ("mask_token", "rope.freqs", "visual.proj", "token_embedding")
    for spoiled in (key for key in file.tensors if ".1." not in key and not any(part in key for part in unread)):
        with pytest.raises(VitkitError, match=spoiled.removesuffix("weight").removesuffix("bias")):
            file.without(spoiled, **given(name))
        if "periods" not in spoiled:
            with pytest.raises(VitkitError):
                file.widened(spoiled, **given(name))


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
    images = torch.randn(2, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        assert largest_difference(found.model(images), model(images)) <= 1e-5
    assert "params/txt/Embed_0/embedding" in found.report.dropped


def test_every_array_of_siglips_npz_that_is_missing_or_misshapen_is_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", **big_vision())
    file = Spoilt(tmp_path / "x.npz")
    for spoiled in (name for name in file.tensors if "img" in name and "encoderblock_1" not in name):
        with pytest.raises(VitkitError, match=spoiled):
            file.without(spoiled)
        with pytest.raises(VitkitError):
            file.widened(spoiled)
