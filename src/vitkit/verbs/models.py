"""`vitkit.models`: list the models that can be built by name, and the published weights that can be loaded by name."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vitkit.errors import VitkitError
from vitkit.model.names import LIBRARIES, config_for, is_model_name, list_models
from vitkit.text.arguments import check_arguments
from vitkit.text.cells import aligned
from vitkit.verbs.result import Result

if TYPE_CHECKING:
    from vitkit.model.config import ViTConfig
    from vitkit.weights.catalog import Entry


@check_arguments
def models(pattern: str = "*", *, weights: bool = False) -> Result:
    """List the models that can be built by name; with `weights`, the published weights that can be loaded by name.

        >>> import vitkit
        >>> vitkit.models("vit_base_patch32_224").names
        ('vit_base_patch32_224', 'vit_base_patch32_224_in21k', 'vit_base_patch32_224_gap')

        >>> row = vitkit.models("deit_tiny", weights=True).rows()[0]
        >>> row["name"], row["licence"], row["top1"]
        ('deit_tiny_patch16_224.fb_in1k', 'Apache-2.0', 72.2)

    On the command line: `vitkit models base`.

    Args:
        pattern: a part of the name, or a pattern such as '*base*'; 'torchvision:*' and 'timm:*' list the networks of
            these libraries.
        weights: list published weights instead, with family, data, licence, cost, and published accuracy with source.

    Returns:
        A result with the fact `names`. Its table has the sizes of each model (the paper's Table 1), or the known facts
        about published weights, such as the licence and the published accuracy on ImageNet-1k in percent. Networks of
        other libraries have no table.

    Raises:
        VitkitError: no name matches.
    """
    library, _, part = pattern.partition(":")
    if library in LIBRARIES:
        if weights:
            raise VitkitError(
                "verbs.option-conflict",
                f"{pattern}: the weights of {library} have the names of its networks; leave out --weights",
            )
        from vitkit.model.network import names_of

        known = [name for name in names_of(library) if not is_model_name(name)]
        networks = [f"{library}:{name}" for name in known if fnmatch.fnmatch(name, part) or part in name]
        if not networks:
            raise VitkitError(
                "verbs.name-unknown",
                f"no network of {library} matches {part!r}; `vitkit models '{library}:*'` lists all {len(known)}",
            )
        remark = "networks that do not end in one linear layer are refused when they are built"
        return _result(networks, "networks", [*networks, remark], None)
    if weights:
        return _published_weights(pattern)
    names = list_models(pattern)
    if not names:
        raise VitkitError(
            "verbs.name-unknown",
            f"no model's name matches {pattern!r}; `vitkit models` lists all {len(list_models())}, and "
            "`vitkit models PATTERN --weights` and `vitkit models 'timm:PATTERN'` search published weights and timm's "
            "networks",
        )
    rows: list[dict[str, Any]] = []
    for name in names:
        config = config_for(name)
        rows.append(
            {
                "name": name,
                "layers": config.layers,
                "hidden_size": config.hidden_size,
                "mlp_size": config.mlp_size,
                "heads": config.heads,
                "patches": f"{config.grid[0]}x{config.grid[1]}",
                "classes": config.num_classes,
                "parameters": count_parameters(config),
            }
        )
    cells = [["name", "layers", "hidden", "MLP", "heads", "patches", "classes", "parameters"]]
    for row in rows:
        printed = {**row, "parameters": f"{row['parameters']:,}"}
        cells.append([str(value) for value in printed.values()])
    return _result(names, "models", aligned(cells), rows)


def _published_weights(pattern: str) -> Result:
    """List the published weights whose names match."""
    from vitkit.weights import catalog

    rows = [_facts(entry) for entry in catalog.search(pattern)]
    if not rows:
        raise VitkitError(
            "verbs.name-unknown",
            f"no published weights match {pattern!r}; `vitkit models --weights` lists all {len(catalog.names())}, "
            "and any OWNER/NAME of the Hugging Face hub may be tried",
        )
    cells = [  # of the printed table, by heading
        {
            "name": row["name"],
            "family": row["family"],
            "data": row["data"],
            "licence": row["licence"],
            "gated": {True: "yes", False: "no", None: ""}[row["gated"]],
            "million": "" if row["parameters"] is None else f"{row['parameters'] / 1e6:.1f}",
            "GMACs": "" if row["gmacs"] is None else f"{row['gmacs']:.1f}",
            "pixels": str(row["pixels"]),
            "timm's": row["timm_pixels"] or "",
            "classes": row["classes"],
            "top-1": "" if row["top1"] is None else f"{row['top1']:.2f}",
            "source": "" if row["source"] is None else f"{row['measured']}; {row['source']}",
        }
        for row in rows
    ]
    lines = aligned([list(cells[0]), *(list(row.values()) for row in cells)])
    others = sum(row["timm_pixels"] == "other" for row in rows)
    if others:
        lines.append(
            f"{others} have the preprocessing of their authors, which differs from timm's: timm:NAME uses timm's"
        )
    return _result([row["name"] for row in rows], "published weights", lines, rows, {"weights": rows})


def _result(
    names: Sequence[str],
    what: str,
    lines: Sequence[str],
    rows: Sequence[dict[str, Any]] | None,
    json: Mapping[str, Any] | None = None,
) -> Result:
    summary = f"{len(names)} {what}, {names[0]} ... {names[-1]}"
    json = {"models": list(names)} if json is None else json
    return Result("models", lines, {"names": tuple(names)}, json=json, rows=rows, summary=summary)


def count_parameters(config: ViTConfig) -> int:
    """Count the parameters of a named model without building it.

    The formulas assume biases, LayerNorms and learned positions, which all named models have.
    """
    c, D = config, config.hidden_size
    channels, stem = c.in_channels, 0
    if c.stem is not None:
        channels, stem = _stem_parameters(c.in_channels, c.stem)
    patches = channels * c.patch_size[0] * c.patch_size[1] * D + D
    tokens = (c.prefix_tokens + c.tokens) * D  # the learned tokens, and a position for each token
    attention = 4 * D * (D + 1)  # q, k, v and the output
    mlp = 2 * D * c.mlp_size + c.mlp_size + D
    norm = 2 * D
    layers = c.layers * (attention + mlp + 2 * norm)

    convolution = 10 * D  # depthwise, 3x3 with a bias
    layers += len(c.conv_layers) * (convolution - 3 * D * (D + 1))  # instead of q, k and v
    # Only the patches are convolved. If the head reads the class token, those of the last layer are not needed.
    convolved_layers = c.layers - (c.pool == "token")
    if c.mlp_kind == "conv":
        layers += 10 * c.mlp_size * convolved_layers
    if c.projection == "conv":
        layers += convolution * (2 * c.layers + convolved_layers)  # k and v, and q

    representation = 0 if c.representation_size is None else (D + 1) * c.representation_size
    head = (c.feature_size + 1) * c.num_classes
    heads = 2 * head if c.distill_head else head
    return stem + patches + tokens + layers + norm + representation + heads


def _stem_parameters(in_channels: int, stages: Sequence[int]) -> tuple[int, int]:
    """Return the number of output channels and of parameters of a ResNet stem (`model.hybrids.ResNetStem`)."""
    channels = 64
    total = 7 * 7 * in_channels * channels + 2 * channels  # a convolution without a bias, and a norm
    for stage, units in enumerate(stages):
        width = 64 * 2**stage
        for unit in range(units):
            total += channels * width + 9 * width**2 + width * 4 * width  # convolutions of 1x1, 3x3 and 1x1
            total += 2 * (width + width + 4 * width)  # their norms
            if unit == 0:  # the shortcut has a convolution of 1x1 and a norm
                total += channels * 4 * width + 2 * 4 * width
            channels = 4 * width
    return channels, total


def _facts(entry: Entry) -> dict[str, Any]:
    from vitkit.weights.catalog import facts_of

    facts = facts_of(entry.name)
    timm_pixels = None
    if entry.timm is not None:
        timm_pixels = "same" if entry.timm == entry.preprocess else "other"
    return {
        "name": entry.name,
        "family": facts.family,
        "data": facts.data,
        "licence": entry.licence,
        "gated": {"yes": True, "no": False}.get(facts.gated),
        "parameters": facts.parameters,
        "gmacs": facts.gmacs,
        "pixels": entry.preprocess.size[0],
        "timm_pixels": timm_pixels,
        "classes": entry.classes,
        "top1": facts.top1,
        "measured": facts.measured or None,
        "source": facts.source or None,
        "paper": entry.paper or None,
        "where": entry.url or f"hub:{entry.hub}",
    }
