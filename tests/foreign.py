"""Tiny models of other libraries with random weights: the oracles, and the checkpoints that they leave."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import timm
import torch
import transformers
from safetensors.torch import save_file
from timm.layers import SwiGLUPacked
from timm.models.deit import VisionTransformerDistilled
from timm.models.vision_transformer import VisionTransformer as TimmViT
from torch import Tensor, nn
from torchvision.models.vision_transformer import VisionTransformer as TorchvisionViT

from tiny import randomise


class Foreign(NamedTuple):
    """A model, the options that loading its bare weights needs, the side of its images, and its answer to them."""

    model: nn.Module
    options: dict[str, Any]
    side: int = 16
    answer: Callable[[Any, Tensor], Any] = lambda model, batch: model(batch)


_TIMM: dict[str, Any] = {
    "img_size": 16,
    "patch_size": 4,
    "embed_dim": 32,
    "depth": 2,
    "num_heads": 4,
    "mlp_ratio": 2,
    "num_classes": 7,
}
_SWIGLU = {"mlp_layer": SwiGLUPacked, "act_layer": nn.SiLU, "mlp_ratio": 4}
_HYBRID = {"img_size": 64, "embed_dim": 48, "depth": 2, "num_heads": 3, "num_classes": 7}
_HF: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 16,
    "patch_size": 4,
    "num_labels": 7,
}

FOUR_HEADS = {"heads": 4}
_MAKERS: dict[str, Callable[[], Foreign]] = {
    "timm token": lambda: Foreign(TimmViT(**_TIMM), FOUR_HEADS),
    "timm no qkv bias": lambda: Foreign(TimmViT(**_TIMM, qkv_bias=False), FOUR_HEADS),
    "timm gap": lambda: Foreign(TimmViT(**_TIMM, global_pool="avg"), FOUR_HEADS),
    "timm gap without a token": lambda: Foreign(
        TimmViT(**_TIMM, global_pool="avg", class_token=False, fc_norm=False), FOUR_HEADS
    ),
    "timm distilled": lambda: Foreign(VisionTransformerDistilled(**_TIMM), FOUR_HEADS),
    "timm DeiT III": lambda: Foreign(TimmViT(**_TIMM, no_embed_class=True, init_values=1e-6), FOUR_HEADS),
    "timm DINOv2": lambda: Foreign(TimmViT(**{**_TIMM, "num_classes": 0}, init_values=1e-5), FOUR_HEADS),
    "timm DINOv2 registers": lambda: Foreign(
        TimmViT(**_TIMM, reg_tokens=4, no_embed_class=True, init_values=1e-5), FOUR_HEADS
    ),
    "timm DINOv2 swiglu": lambda: Foreign(TimmViT(**{**_TIMM, **_SWIGLU}, init_values=1e-5), FOUR_HEADS),
    "timm MAE": lambda: Foreign(TimmViT(**{**_TIMM, "num_classes": 0}), FOUR_HEADS),
    "timm R+Ti": lambda: Foreign(timm.create_model("vit_tiny_r_s16_p8_224", **_HYBRID), {"heads": 3}, 64),
    "timm R26": lambda: Foreign(timm.create_model("vit_small_r26_s32_224", **_HYBRID), {"heads": 3}, 64),
    "timm R50": lambda: Foreign(timm.create_model("vit_base_r50_s16_224", **_HYBRID), {"heads": 3}, 64),
    "torchvision": lambda: Foreign(TorchvisionViT(16, 4, 2, 4, 32, 48, num_classes=7), FOUR_HEADS),
    "torchvision representation": lambda: Foreign(
        TorchvisionViT(16, 4, 2, 4, 32, 48, num_classes=7, representation_size=20), FOUR_HEADS
    ),
}


def _hugging_face(family: str, model: str, **options: Any) -> Foreign:
    sizes = {**_HF, **({"mlp_ratio": 2} if "Dinov2" in family else {"intermediate_size": 48}), **options}
    config = getattr(transformers, f"{family}Config")(**sizes)
    bare = {"heads": 4, "norm_eps": config.layer_norm_eps}
    if config.hidden_act != "gelu":
        bare["gelu"] = "tanh"
    return Foreign(getattr(transformers, model)(config), bare)


_CLASSIFIER = "ForImageClassification"
_MAKERS |= {
    "HF ViT": partial(_hugging_face, "ViT", f"ViT{_CLASSIFIER}"),
    "HF ViT tanh": partial(_hugging_face, "ViT", f"ViT{_CLASSIFIER}", hidden_act="gelu_new", qkv_bias=False),
    "HF DeiT": partial(_hugging_face, "DeiT", f"DeiT{_CLASSIFIER}"),
    "HF DeiT two heads": partial(_hugging_face, "DeiT", f"DeiT{_CLASSIFIER}WithTeacher"),
    "HF Dinov2": partial(_hugging_face, "Dinov2", f"Dinov2{_CLASSIFIER}"),
    "HF Dinov2 swiglu": partial(_hugging_face, "Dinov2", f"Dinov2{_CLASSIFIER}", use_swiglu_ffn=True),
    "HF Dinov2 registers": partial(_hugging_face, "Dinov2WithRegisters", f"Dinov2WithRegisters{_CLASSIFIER}"),
}


def _encoder(family: str, model: str, options: dict[str, Any], **fields: Any) -> Foreign:
    """An image encoder without a head, which answers with features."""
    sizes = {name: value for name, value in _HF.items() if name != "num_labels"}
    config = getattr(transformers, f"{family}Config")(**sizes, intermediate_size=48, **fields)
    return Foreign(getattr(transformers, model)(config), {**FOUR_HEADS, **options}, answer=_features)


def _features(model: Any, batch: Tensor) -> Tensor:
    output = model(batch)
    pooled = getattr(output, "pooler_output", None)
    return output.last_hidden_state[:, 0] if pooled is None else pooled


_MAKERS |= {
    "HF MSN": partial(_hugging_face, "ViTMSN", f"ViTMSN{_CLASSIFIER}"),
    "HF IJepa": partial(_hugging_face, "IJepa", f"IJepa{_CLASSIFIER}"),
    "encoder CLIP": partial(_encoder, "CLIPVision", "CLIPVisionModel", {}),
    "encoder CLIP erf": partial(_encoder, "CLIPVision", "CLIPVisionModel", {"gelu": "erf"}, hidden_act="gelu"),
    "encoder SigLIP": partial(_encoder, "SiglipVision", "SiglipVisionModel", {}),
    "encoder MAE": partial(_encoder, "ViTMAE", "ViTMAEModel", {}, mask_ratio=0.0),
}
NAMES = tuple(_MAKERS)


def make(name: str) -> Foreign:
    """One of `NAMES`, every parameter of it random, in eval mode."""
    torch.manual_seed(0)
    made = _MAKERS[name]()
    randomise(made.model)
    return made._replace(model=made.model.eval())


def images(foreign: Foreign) -> Tensor:
    return torch.randn(2, 3, foreign.side, foreign.side, generator=torch.Generator().manual_seed(1))


def logits(foreign: Foreign) -> Tensor:
    """What the other library says of `images`."""
    with torch.no_grad():
        output = foreign.answer(foreign.model, images(foreign))
    return getattr(output, "logits", output)


def save_state(foreign: Foreign, path: Path) -> Path:
    """The bare state dictionary, as .safetensors or as PyTorch's file."""
    state = foreign.model.state_dict()
    if path.suffix == ".safetensors":
        save_file({name: tensor.contiguous() for name, tensor in state.items()}, path)
    else:
        torch.save(state, path)
    return path


def save_folder(foreign: Foreign, folder: Path, **options: Any) -> Path:
    """A folder as on the Hugging Face hub."""
    transformers.logging.disable_progress_bar()
    foreign.model.save_pretrained(folder, **options)  # type: ignore[operator]
    return folder
