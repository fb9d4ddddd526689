"""Which fields of the configuration each consumer supports.

Some code computes or describes a model without calling its `forward`: the optimised model, attention maps, and the
layouts of other libraries. These are called consumers. A consumer would silently ignore a field of the configuration
that it does not know. It therefore first calls `check`, which raises an error that names the field. For layouts,
`weights.formats.export.check_expressible` does the same.

A consumer supports the value of a field if one of these conditions is met:

- The value is the default. A new field therefore does not affect the consumers until it is set.
- The field does not affect predictions (`WITHOUT_EFFECT`).
- The field is in `COMPUTED`. For layouts, it is in `WRITTEN` instead, or the value is in the layout's own list.
- The value is one of `ATTENTION`.

This module does not import torch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Set
from typing import Any

from vitkit.errors import VitkitError
from vitkit.model.config import ViTConfig

OPTIMIZED = "the optimised model"
MAPS = "attention maps"

# Fields that only affect the initialisation, training or resizing of weights, and not the predictions of a model.
WITHOUT_EFFECT = frozenset({"init", "dropout", "attention_dropout", "position_dropout", "drop_path", "position_resize"})
ATTENTION = ("softmax", "axial", "window")  # values of `attention` that consumers compute or draw
# Fields that `check` accepts at any value. A consumer itself refuses a value that it does not support.
COMPUTED = frozenset(
    {"image_size", "patch_size", "in_channels", "stem", "stem_kind", "patch_norm", "patch_bias"}  # eq. 1: patches
    | {"class_token", "distill_token", "registers", "position", "position_at", "prefix_positions", "embed_norm"}
    | {"relative_size", "rotary", "rotary_base", "rotary_grid", "rotary_offset"}
    | {"layers", "hidden_size", "heads", "mlp_size", "mlp_kind", "projection", "conv_layers"}  # eqs. 2-3
    | {"norm", "norm_kind", "norm_eps", "layer_scale", "activation", "gelu", "qkv_bias", "proj_bias", "qk_scale"}
    | {"attention_norm", "mlp_norm", "window_size", "global_layers"}
    | {"num_classes", "pool", "pool_heads", "pool_mlp_size", "distill_head", "representation_size"}  # eq. 4
    | {"fc_norm", "last_norm", "representation"}
)
# Fields that other libraries' layouts store: in the shapes and names of tensors, or in files next to the tensors.
WRITTEN = frozenset(
    {"image_size", "patch_size", "in_channels", "num_classes", "layers", "hidden_size", "heads", "mlp_size", "stem"}
    | {"mlp_kind", "stem_kind", "class_token", "pool", "distill_token", "distill_head", "registers"}
    | {"representation_size", "prefix_positions", "norm_eps", "fc_norm", "layer_scale", "gelu", "qkv_bias"}
)


def changed_fields(config: ViTConfig, known: Set[str]) -> dict[str, Any]:
    """Return the fields that affect predictions, are not in `known`, and do not have their defaults, with values."""
    fields = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if field.name not in known | WITHOUT_EFFECT and value != field.default:
            fields[field.name] = value
    return fields


def unsupported_reason(config: ViTConfig, consumer: str) -> str | None:
    """Return the reason why a consumer, `OPTIMIZED` or `MAPS`, does not support a configuration; None if it does."""
    for name, value in changed_fields(config, COMPUTED).items():
        if name != "attention" or value not in ATTENTION:
            return f"{consumer} cannot be used with {name}={value!r} of ViTConfig, which would be ignored"
    return None


def check(config: ViTConfig, consumer: str) -> None:
    """Check that a consumer supports a configuration."""
    if reason := unsupported_reason(config, consumer):
        raise VitkitError("model.option-unsupported", reason)
