"""Architectures that share names and shapes of tensors, so that a bare file cannot tell which of them it is."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple

from vitkit.model.config import ViTConfig


class Namesake(NamedTuple):
    """What a file of such a shape may also be.

    Attributes:
        field: of the configuration, in which the two differ.
        fits: whether a configuration has the shape that both share.
        says: what was taken, what else it may be, and what to do.
    """

    field: str
    fits: Callable[[ViTConfig], bool]
    says: Callable[[ViTConfig], str]


def _is_tokenless(config: ViTConfig) -> bool:
    """Mean-pooled, without a class token, LayerScale or registers, as SigLIP's towers and I-JEPA's are."""
    return not (config.class_token or config.layer_scale or config.registers) and config.pool == "gap"


_TIMM = (
    Namesake(
        "norm",
        lambda config: _is_tokenless(config) and not config.qkv_bias and config.fc_norm,
        lambda config: (
            f"{config.norm}, as in the paper; timm's vit_base_patch16_rpn_224 has the same tensors and normalises what "
            "each sublayer gives: norm='res-post' says so"
        ),
    ),
    Namesake(
        "gelu",
        lambda config: config.pool == "map" or (_is_tokenless(config) and config.qkv_bias),
        lambda config: (
            f"{config.gelu}, as is usual for timm; some of SigLIP's encoders (timm's vit_*_siglip_*) have the same "
            "tensors and GELU by tanh: gelu='tanh' says so"
        ),
    ),
    Namesake(
        "heads",
        lambda config: _is_tokenless(config) and config.qkv_bias and (config.layers, config.hidden_size) == (12, 768),
        lambda config: (
            f"{config.heads}, as in ViT-B; timm's vit_base_patch16_gap_224 (I-JEPA) has the same tensors and 16: "
            "heads=16 says so"
        ),
    ),
)
_UNREGISTERED = Namesake(
    "registers",
    lambda config: config.pool == "gap" and not config.class_token and not config.registers,
    lambda _: (
        "none, because there is no reg_token; timm's vit_*_reg*_gap_* have some: if the file has lost it, the answers "
        "are wrong"
    ),
)
_UNNORMED = Namesake(
    "last_norm",
    lambda config: not config.last_norm,
    lambda _: (
        "False, because there is no norm after the last layer, as in RADIO's and InternViT's encoders; if the file has "
        "lost it, the answers are wrong"
    ),
)
_CLIP = Namesake(
    "gelu",
    lambda config: config.embed_norm,
    lambda config: (
        f"{config.gelu}, as LAION trained its CLIP models; OpenAI's own, DFN's and MetaCLIP's have the same tensors "
        "and x sigmoid(1.702 x) (timm's vit_*_clip_quickgelu_*): gelu='quick' says so"
    ),
)
_TUTORIAL = Namesake(
    "qk_scale",
    lambda config: config.qk_scale is None,
    lambda config: (
        f"1 / sqrt({config.head_size}), the size of a head; code that names its positions pos_embedding.pos_embedding "
        "takes another as an argument, which no file keeps: qk_scale=... says so"
    ),
)


def namesakes(config: ViTConfig, names: Collection[str], settled: Collection[str]) -> dict[str, str]:
    """What had to be assumed of a bare file with timm's names, by field.

    Args:
        config: as it was understood.
        names: of the file's tensors.
        settled: fields that the user gave.
    """
    known = (*_TIMM, _CLIP, _UNNORMED, _UNREGISTERED, *((_TUTORIAL,) if "pos_embedding.pos_embedding" in names else ()))
    return {each.field: each.says(config) for each in known if each.field not in settled and each.fits(config)}
