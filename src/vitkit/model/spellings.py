"""What other libraries call the same options, and what to say where they mean something else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vitkit.errors import VitkitError

_SAME = {  # timm's words, and those of the scripts that are handed around
    "img_size": "image_size",
    "in_chans": "in_channels",
    "in_c": "in_channels",
    "embed_dim": "hidden_size",
    "depth": "layers",
    "num_heads": "heads",
    "init_values": "layer_scale",
    "reg_tokens": "registers",
    "proj_drop_rate": "dropout",
    "pos_drop_rate": "position_dropout",
    "attn_drop_rate": "attention_dropout",
    "attn_drop_ratio": "attention_dropout",
    "drop_path_rate": "drop_path",
    "drop_path_ratio": "drop_path",
}
_POOLS = {"token": "token", "avg": "gap", "map": "map"}
_REFUSED = {
    "embed_layer": "patches are cut by a convolution; a ResNet before it has a name of its own (`vitkit models r50`)",
    "norm_layer": "say norm='pre' or 'post', norm_eps=1e-6",
    "act_layer": "say gelu='erf', 'tanh' or 'quick'",
    "block_fn": "say norm='pre' or 'post', or name conv_layers",
    "mlp_layer": "say mlp_kind='mlp', 'swiglu' or 'conv'",
    "patch_drop_rate": "patches are dropped in training alone: vitkit train --patch-dropout",
    "drop_block_rate": "say drop_path",
}


def canonical(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options by the names of `ViTConfig`'s fields; a name that is unknown here stays as it is.

    `drop_ratio` is dropout in all places, as in the scripts that call it so. timm's `drop_rate` is dropout before the
    head, which no Vision Transformer here has: only 0 is understood.

    Raises:
        VitkitError: a class is given where a word says what is meant; or an option is given in two spellings.
    """
    found: dict[str, Any] = {}
    for name, value in options.items():
        for field, meant in _meaning(name, value).items():
            if field in found:
                raise VitkitError(f"{name} and another option both say what {field} is: give one of them")
            found[field] = meant
    return found


def _meaning(name: str, value: Any) -> dict[str, Any]:
    if name in _REFUSED:
        if value is None or (name.endswith("_rate") and value == 0):
            return {}
        raise VitkitError(f"{name} is not taken: {_REFUSED[name]}")
    if name == "drop_ratio":
        return {"dropout": value, "position_dropout": value}
    if name == "drop_rate":
        if value == 0:
            return {}
        raise VitkitError(
            "drop_rate is dropout before the head in timm, which these models do not have: say dropout (timm's "
            "proj_drop_rate), position_dropout or attention_dropout"
        )
    if name == "global_pool":
        if value not in _POOLS:
            raise VitkitError(f"global_pool must be one of {', '.join(_POOLS)}, not {value!r}: or say pool")
        return {"pool": _POOLS[value]}
    return {_SAME.get(name, name): value}
