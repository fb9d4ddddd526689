"""`vitkit.models`: the names that can be built, and the published weights that can be loaded."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vitkit.errors import VitkitError
from vitkit.model.names import config_for, is_model_name, list_models
from vitkit.model.network_config import LIBRARIES
from vitkit.text.arguments import check_arguments
from vitkit.text.cells import aligned
from vitkit.verbs.result import Result

if TYPE_CHECKING:
    from vitkit.weights.catalog import Entry


@dataclass(frozen=True, repr=False)
class ModelList(Result):
    """Models that can be built by name.

    Attributes:
        names: of the models, the smallest first.
    """

    names: tuple[str, ...]

    def lines(self) -> list[str]:
        """A table: layers, width, heads, patches and classes of each."""
        width = max(map(len, self.names))
        heading = f"{'name':{width}}  layers  hidden  heads  patches  classes"
        return [heading, *(_shape_line(name, width) for name in self.names)]

    def to_dict(self) -> dict[str, Any]:
        """The names."""
        return {"models": list(self.names)}

    def __repr__(self) -> str:
        return f"<ModelList: {_counted(self.names, 'models')}>"


@dataclass(frozen=True, repr=False)
class WeightList(Result):
    """Published weights that load by name.

    Attributes:
        entries: of the catalog, in its order.
    """

    entries: tuple[Entry, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """What a user types for each."""
        return tuple(entry.name for entry in self.entries)

    def lines(self) -> list[str]:
        """A table: what each was trained on, its licence, cost and published accuracy; an empty cell is not known."""
        rows = [_facts(entry) for entry in self.entries]
        heading = [*("name", "family", "data", "licence", "gated", "million", "GMACs", "pixels", "timm's")]
        heading += ["classes", "top-1", "source"]
        others = sum(row["timm_pixels"] == "other" for row in rows)
        told = f"{others} have other pixels here, their authors' own, than in timm: timm:NAME takes timm's"
        return [*aligned([heading, *map(_weights_cells, rows)]), *([told] if others else [])]

    def to_dict(self) -> dict[str, Any]:
        """What is known of each."""
        return {"weights": [_facts(entry) for entry in self.entries]}

    def __repr__(self) -> str:
        return f"<WeightList: {_counted(self.names, 'published weights')}>"


@dataclass(frozen=True, repr=False)
class NetworkList(Result):
    """Networks of another library.

    Attributes:
        names: what a user types for each.
    """

    names: tuple[str, ...]

    def lines(self) -> list[str]:
        """The names, and what may be wrong with them."""
        return [*self.names, "those that do not end in one Linear are refused when they are asked for"]

    def to_dict(self) -> dict[str, Any]:
        """The names."""
        return {"models": list(self.names)}

    def __repr__(self) -> str:
        return f"<NetworkList: {_counted(self.names, 'networks')}>"


@check_arguments
def models(pattern: str = "*", *, weights: bool = False) -> ModelList | WeightList | NetworkList:
    """List the models that can be built by name; with `weights`, the published weights that load by name.

    `vitkit.models("base").names` are those with "base" in their name.

    On the command line: `vitkit models base`.

    Args:
        pattern: part of the name, or a pattern such as '*base*'; 'torchvision:*' and 'timm:*' are those libraries'.
        weights: published weights instead: family, data, licence, cost, published accuracy and its source.

    Raises:
        VitkitError: no name matches.
    """
    if (library := pattern.partition(":")[0]) in LIBRARIES:
        if weights:
            raise VitkitError(
                f"{pattern}: what {library} publishes goes by the names of its networks; leave out --weights"
            )
        return NetworkList(_find_networks(pattern))
    if weights:
        return WeightList(_find_weights(pattern))
    names = list_models(pattern)
    if not names:
        raise VitkitError(f"no model's name matches {pattern!r}; `vitkit models` lists all {len(list_models())}")
    return ModelList(tuple(names))


def _find_networks(pattern: str) -> tuple[str, ...]:
    from vitkit.model.network import names_of

    library, _, own = pattern.partition(":")
    known = [name for name in names_of(library) if not is_model_name(name)]
    found = tuple(f"{library}:{name}" for name in known if fnmatch.fnmatch(name, own) or own in name)
    if not found:
        raise VitkitError(
            f"no network of {library} matches {own!r}; `vitkit models '{library}:*'` lists all {len(known)}"
        )
    return found


def _find_weights(pattern: str) -> tuple[Entry, ...]:
    from vitkit.weights.catalog import names, search

    entries = search(pattern)
    if not entries:
        raise VitkitError(
            f"no published weights match {pattern!r}; `vitkit models --weights` lists all {len(names())}, and any "
            "OWNER/NAME of the Hugging Face hub may be tried"
        )
    return tuple(entries)


def _shape_line(name: str, width: int) -> str:
    c = config_for(name)
    grid = f"{c.grid[0]}x{c.grid[1]}"
    return f"{name:{width}}  {c.layers:6}  {c.hidden_size:6}  {c.heads:5}  {grid:>7}  {c.num_classes:7}"


def _facts(entry: Entry) -> dict[str, Any]:
    from vitkit.weights.catalog import facts_of

    own = facts_of(entry.name)
    return {
        "name": entry.name,
        "family": own.family,
        "data": own.data,
        "licence": entry.licence,
        "gated": {"yes": True, "no": False}.get(own.gated),
        "parameters": own.parameters,
        "gmacs": own.gmacs,
        "pixels": entry.preprocess.size[0],
        "timm_pixels": None if entry.timm is None else "same" if entry.timm == entry.preprocess else "other",
        "classes": entry.classes,
        "top1": own.top1,
        "measured": own.measured or None,
        "source": own.source or None,
        "paper": entry.paper or None,
        "where": entry.url or f"hub:{entry.hub}",
    }


def _weights_cells(row: dict[str, Any]) -> list[str]:
    size = "" if row["parameters"] is None else f"{row['parameters'] / 1e6:.1f}"
    gmacs = "" if row["gmacs"] is None else f"{row['gmacs']:.1f}"
    top1 = "" if row["top1"] is None else f"{row['top1']:.2f}"
    gated = {True: "yes", False: "no", None: ""}[row["gated"]]
    source = "" if row["source"] is None else f"{row['measured']}; {row['source']}"
    facts = [row["name"], row["family"], row["data"], row["licence"], gated, size, gmacs, str(row["pixels"])]
    return [*facts, row["timm_pixels"] or "", row["classes"], top1, source]


def _counted(names: Sequence[str], what: str) -> str:
    return f"{len(names)} {what}, {names[0]} ... {names[-1]}"
