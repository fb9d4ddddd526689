"""Who has an answer to which value of `ViTConfig`: the one registry of those who do not simply call the model.

The optimised model, the graph builder, token merging, attention maps and the layouts of other libraries compute or
describe a model in their own way. Each calls `check` first. A field at its default asks nothing of them, so a new field
is fine everywhere until somebody sets it. At another value, the field is either among those that are computed or
written at any value, or a `Variant` has a handler for it, or the model is refused by the field's name and value: what
nobody computes would be left out of the answers silently.

A new kind of attention or block is a field in `config`, a module, its place in `vit`, and a row here. Nothing here
loads torch.
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

NO_NAME = r"(?!)"  # a pattern that no name has
# Fields that change how weights begin, are trained or are resized, and no answer of a model that has its weights.
WITHOUT_EFFECT = frozenset({"init", "dropout", "attention_dropout", "position_dropout", "drop_path", "position_resize"})
# Fields that are computed at any value by whoever computes a model. What one of them cannot do at some value of these,
# such as merging tokens whose positions act in every layer, it refuses by itself.
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
    """Values of one field, and what there is for them.

    Attributes:
        field: the field of `ViTConfig`.
        signs: for each value the pattern that the name of a tensor in timm's layout begins with, which no model without
            this value has; `NO_NAME` if there is none.
        module: the module where the value is computed, and where the handlers are.
        handlers: who computes or writes the value, and the name in `module` of what does it for them; empty
            where their general way does.
        refusals: why others refuse it, or what to do instead.
    """

    field: str
    signs: Mapping[Any, str]
    module: str
    handlers: Mapping[str, str]
    refusals: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def handler(self, who: str) -> Any:
        """What computes or writes the value for somebody; None where their general way does."""
        name = self.handlers[who]
        return getattr(import_module(self.module), name) if name else None


class TimmNames(Protocol):
    """What a handler for timm's layout has."""

    def read(self, names: Collection[str]) -> Mapping[str, tuple[tuple[str, ...], Callable[..., Any]]]:
        """By our name, those of the tensors that hold ours, and what joins them; of names that differ."""

    def write(self, tensors: dict[str, Any]) -> dict[str, Any]:
        """Our tensors under timm's names."""

    def describe(self, config: ViTConfig) -> tuple[str | None, dict[str, Any]]:
        """A model of timm's of this kind, None for any, and the arguments that it takes in addition to the usual ones.

        Raises:
            VitkitError: timm has none.
        """


VARIANTS: tuple[Variant, ...] = (
    Variant(
        field="attention",
        signs={"differential": r"blocks\.\d+\.(attn\.)?lambda_q1$"},
        module="vitkit.model.differential",
        handlers={OPTIMIZED: "", GRAPH: "emit", TIMM: "DifferentialTimm"},
        refusals={
            MAPS: "whose rows are differences of two maps and do not sum to 1: use --method occlusion",
            MERGING: "in which a merged patch would have to count twice: leave --merge out",
        },
    ),
    # What a user registers has any name and any tensors: everybody refuses it.
    Variant(field="block", signs={}, module="vitkit.model.registry", handlers={}),
    Variant(
        field="attention",
        signs=dict.fromkeys(("axial", "window"), NO_NAME),  # their tensors are those of other attention
        module="vitkit.model.windows",
        handlers={OPTIMIZED: "", GRAPH: "", MAPS: ""},
        refusals={MERGING: "which needs each patch in its place: leave --merge out"},
    ),
    Variant(
        field="parallel",
        signs={"separate": r"blocks\.\d+\.attn_out_proj\.", "fused": r"blocks\.\d+\.out_proj\."},
        module="vitkit.model.parallel",
        handlers={OPTIMIZED: "", GRAPH: "", MAPS: "", TIMM: "ParallelTimm"},
        refusals={
            MERGING: "in which nothing comes between attention and MLP, where tokens are merged: leave --merge out"
        },
    ),
)


def variants_of(config: ViTConfig) -> list[Variant]:
    """The rows whose values this configuration has."""
    return [row for row in VARIANTS if getattr(config, row.field) in row.signs]


def handlers_of(config: ViTConfig, who: str) -> list[Any]:
    """What computes or writes the values of this configuration for somebody, where their general way does not."""
    handlers = [row.handler(who) for row in variants_of(config) if who in row.handlers]
    return [handler for handler in handlers if handler is not None]


def fields_by_names(names: Iterable[str]) -> dict[str, Any]:
    """The fields that tensors of these names, in timm's layout, tell the values of."""
    names = list(names)
    return {
        row.field: value
        for row in VARIANTS
        for value, sign in row.signs.items()
        if any(re.match(sign, name) for name in names)
    }


def settings(config: ViTConfig, among: Set[str]) -> dict[str, Any]:
    """The fields that are not at their defaults, not among these, and change the answers."""
    return {
        field.name: value
        for field in dataclasses.fields(config)
        if field.name not in among | WITHOUT_EFFECT and (value := getattr(config, field.name)) != field.default
    }


def reason_against(config: ViTConfig, who: str) -> str | None:
    """Why somebody cannot compute a configuration: the field and its value; None where they can.

    Args:
        config: the config of the model.
        who: one of the names above, by whom models are computed.
    """
    for name, value in settings(config, COMPUTED).items():
        row = next((row for row in variants_of(config) if row.field == name), None)
        if row is None or who not in row.handlers:
            why = "and would compute another model"
            if row is not None and who in row.refusals:
                why = row.refusals[who]
            return f"{who} does not know {name}={value!r} of ViTConfig, {why}"
    return None


def check(config: ViTConfig, who: str) -> None:
    """Refuse a configuration that somebody would compute otherwise.

    Raises:
        VitkitError: a field has a value that they do not compute; the message names both.
    """
    if reason := reason_against(config, who):
        raise VitkitError(reason)
