"""The registry of the code that computes or describes a model without calling it, and of the variants it supports.

The optimised model, the graph builder, token merging, attention maps and the layouts of other libraries compute or
describe a model in their own way. Each of these consumers calls `check` first. A field at its default is always
supported, so a new field has no effect on them until it is set. At another value, the field must either be one that is
supported at any value, or a `Variant` must have a handler for the consumer. Otherwise the model is refused with the
name and value of the field, because the field would silently be ignored.

A new kind of attention or block is a field in `config`, a module, its place in `vit`, and a row here. This module does
not import torch.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

from vitkit.errors import VitkitError
from vitkit.model.config import ViTConfig

OPTIMIZED = "the optimised model"
GRAPH = "the graph builder"
MERGING = "token merging"
MAPS = "attention maps"
TIMM = "the timm layout"

NO_NAME = r"(?!)"  # a pattern that matches no name
# Fields of the initialisation, training or resizing of weights, which do not affect a model that has its weights.
WITHOUT_EFFECT = frozenset({"init", "dropout", "attention_dropout", "position_dropout", "drop_path", "position_resize"})
# Fields that every consumer supports at any value. If a consumer does not support some value of these, such as token
# merging with positions in every layer, it refuses that itself.
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
# Fields that other libraries' layouts determine: by shapes and names, or by files next to the tensors.
WRITTEN = frozenset(
    {"image_size", "patch_size", "in_channels", "num_classes", "layers", "hidden_size", "heads", "mlp_size", "stem"}
    | {"mlp_kind", "stem_kind", "class_token", "pool", "distill_token", "distill_head", "registers"}
    | {"representation_size", "prefix_positions", "norm_eps", "fc_norm", "layer_scale", "gelu", "qkv_bias"}
)


@dataclass(frozen=True, kw_only=True)
class Variant:
    """Some values of one field, and the code that supports them.

    Attributes:
        field: the field of `ViTConfig`.
        signs: for each value, a pattern of tensor names in timm's layout that only models with this value have;
            `NO_NAME` if there is none.
        module: the module that computes the value and contains the handlers.
        handlers: the name of the handler in `module` by consumer; an empty name if the consumer needs no special code.
        refusals: by consumer, why it refuses the value, or what to do instead.
    """

    field: str
    signs: Mapping[Any, str]
    module: str
    handlers: Mapping[str, str]
    refusals: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def handler(self, who: str) -> Any:
        """Return the handler for a consumer; None if it needs no special code."""
        name = self.handlers[who]
        return getattr(import_module(self.module), name) if name else None


class TimmNames(Protocol):
    """The interface of a handler for timm's layout."""

    def read(self, names: Collection[str]) -> Mapping[str, tuple[tuple[str, ...], Callable[..., Any]]]:
        """Return, by our name, the names of timm's tensors that contain our tensor, and a function that joins them."""

    def write(self, tensors: dict[str, Any]) -> dict[str, Any]:
        """Return our tensors under timm's names."""

    def describe(self, config: ViTConfig) -> tuple[str | None, dict[str, Any]]:
        """Return the name of timm's model of this kind, or None for any, and its additional arguments.

        Raises:
            VitkitError: timm has no such model.
        """


VARIANTS: tuple[Variant, ...] = (
    Variant(
        field="attention",
        signs={"differential": r"blocks\.\d+\.(attn\.)?lambda_q1$"},
        module="vitkit.model.differential",
        handlers={OPTIMIZED: "", GRAPH: "emit", TIMM: "DifferentialTimm"},
        refusals={
            MAPS: "whose rows are differences of two maps and do not sum to 1: use --method occlusion",
            MERGING: "which would have to count a merged patch twice: leave out --merge",
        },
    ),
    # Blocks that users register may have any tensors, so all consumers refuse them.
    Variant(field="block", signs={}, module="vitkit.model.registry", handlers={}),
    Variant(
        field="attention",
        signs=dict.fromkeys(("axial", "window"), NO_NAME),  # their tensors are those of ordinary attention
        module="vitkit.model.windows",
        handlers={OPTIMIZED: "", GRAPH: "", MAPS: ""},
        refusals={MERGING: "which needs all patches of the grid: leave out --merge"},
    ),
    Variant(
        field="parallel",
        signs={"separate": r"blocks\.\d+\.attn_out_proj\.", "fused": r"blocks\.\d+\.out_proj\."},
        module="vitkit.model.parallel",
        handlers={OPTIMIZED: "", GRAPH: "", MAPS: "", TIMM: "ParallelTimm"},
        refusals={MERGING: "which has no point between attention and MLP, where tokens are merged: leave out --merge"},
    ),
)


def variants_of(config: ViTConfig) -> list[Variant]:
    """Return the rows that apply to this configuration."""
    return [row for row in VARIANTS if getattr(config, row.field) in row.signs]


def handlers_of(config: ViTConfig, who: str) -> list[Any]:
    """Return the handlers of a consumer for this configuration."""
    handlers = [row.handler(who) for row in variants_of(config) if who in row.handlers]
    return [handler for handler in handlers if handler is not None]


def fields_by_names(names: Iterable[str]) -> dict[str, Any]:
    """Return the fields whose values follow from the names of tensors in timm's layout."""
    names = list(names)
    return {
        row.field: value
        for row in VARIANTS
        for value, sign in row.signs.items()
        if any(re.match(sign, name) for name in names)
    }


def settings(config: ViTConfig, among: Set[str]) -> dict[str, Any]:
    """Return the fields that affect predictions, are not in `among`, and are not at their defaults."""
    return {
        field.name: value
        for field in dataclasses.fields(config)
        if field.name not in among | WITHOUT_EFFECT and (value := getattr(config, field.name)) != field.default
    }


def reason_against(config: ViTConfig, who: str) -> str | None:
    """Return why a consumer cannot compute a configuration: the field and its value; None if it can.

    Args:
        config: the configuration of the model.
        who: one of the consumers above.
    """
    for name, value in settings(config, COMPUTED).items():
        row = next((row for row in variants_of(config) if row.field == name), None)
        if row is None or who not in row.handlers:
            why = "which would be ignored"
            if row is not None and who in row.refusals:
                why = row.refusals[who]
            return f"{who} cannot be used with {name}={value!r} of ViTConfig, {why}"
    return None


def check(config: ViTConfig, who: str) -> None:
    """Refuse a configuration that a consumer does not support.

    Raises:
        VitkitError: a field has an unsupported value; the message names both.
    """
    if reason := reason_against(config, who):
        raise VitkitError(reason)
