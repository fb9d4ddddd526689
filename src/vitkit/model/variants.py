"""The registry of model variants, and of the code that supports each of them.

Some code computes or describes a model without calling its `forward`: the optimised model, the graph builder, token
merging, attention maps, and the layouts of other libraries. These are called consumers. A consumer would silently
ignore a field of the configuration that it does not know. It therefore first calls `check`, which raises an error that
names the field. For layouts, `weights.formats.export.refuse` does the same.

A consumer supports the value of a field if one of these conditions is met:

- The value is the default. A new field therefore does not affect the consumers until it is set.
- The field does not affect predictions (`WITHOUT_EFFECT`).
- The field is in `COMPUTED`. For layouts, it is in `WRITTEN` instead, or the value is in the layout's own list.
- A `Variant` with this value has an entry for the consumer in its `handlers`.

A new kind of attention or block needs a field in `config`, a module, a call in `vit`, and a row in `VARIANTS`. This
module does not import torch.
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
# Fields that only affect the initialisation, training or resizing of weights, and not the predictions of a model.
WITHOUT_EFFECT = frozenset({"init", "dropout", "attention_dropout", "position_dropout", "drop_path", "position_resize"})
# Fields that `check` accepts at any value. A consumer itself refuses a value that it does not support. For example,
# token merging refuses positions in every layer.
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


@dataclass(frozen=True, kw_only=True)
class Variant:
    """Some values of one field, and the code that supports them.

    Attributes:
        field: the field of `ViTConfig`.
        signs: for each value, a regular expression for names of tensors in timm's layout. Only models with this value
            have tensors with such names. It is `NO_NAME` if the value cannot be recognised by names.
        module: the module that computes the value and contains the handlers.
        handlers: for each consumer that supports the values, the name of its handler in `module`; an empty name if it
            needs no special code.
        refusals: for consumers that do not support the values, the reason or what to do instead.
    """

    field: str
    signs: Mapping[Any, str]
    module: str
    handlers: Mapping[str, str]
    refusals: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def handler(self, who: str) -> Any:
        """Return this variant's handler for the consumer `who`, or None if `who` needs no special code for it."""
        name = self.handlers[who]
        return getattr(import_module(self.module), name) if name else None


class TimmNames(Protocol):
    """The interface of a handler that converts a model to and from timm's tensors."""

    def read(self, names: Collection[str]) -> Mapping[str, tuple[tuple[str, ...], Callable[..., Any]]]:
        """Map vitkit's tensor names to pairs: timm's names, and a function from timm's tensors to vitkit's tensor."""

    def write(self, tensors: dict[str, Any]) -> dict[str, Any]:
        """Convert vitkit's tensors to timm's tensors, by name."""

    def describe(self, config: ViTConfig) -> tuple[str | None, dict[str, Any]]:
        """Return the name of a timm model and the additional arguments that select this variant.

        The name is None if the arguments work with any model of timm.

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
    """Return the rows of `VARIANTS` that apply to this configuration."""
    return [row for row in VARIANTS if getattr(config, row.field) in row.signs]


def handlers_of(config: ViTConfig, who: str) -> list[Any]:
    """Return the handlers that the consumer `who` has for the variants in this configuration."""
    handlers = [row.handler(who) for row in variants_of(config) if who in row.handlers]
    return [handler for handler in handlers if handler is not None]


def fields_by_names(names: Iterable[str]) -> dict[str, Any]:
    """Return the fields whose values follow from the names of tensors in timm's layout, with these values."""
    names = list(names)
    return {
        row.field: value
        for row in VARIANTS
        for value, sign in row.signs.items()
        if any(re.match(sign, name) for name in names)
    }


def settings(config: ViTConfig, among: Set[str]) -> dict[str, Any]:
    """Return the fields, with values, that affect predictions, are not in `among`, and are not at their defaults."""
    return {
        field.name: value
        for field in dataclasses.fields(config)
        if field.name not in among | WITHOUT_EFFECT and (value := getattr(config, field.name)) != field.default
    }


def reason_against(config: ViTConfig, who: str) -> str | None:
    """Return the reason why a consumer does not support a configuration; None if it does.

    Args:
        config: the configuration of the model.
        who: the consumer: `OPTIMIZED`, `GRAPH`, `MERGING` or `MAPS`.
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
        VitkitError: a field has an unsupported value; the message names the field and the value.
    """
    if reason := reason_against(config, who):
        raise VitkitError(reason)
