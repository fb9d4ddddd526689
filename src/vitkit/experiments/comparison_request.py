"""Parse the request of a comparison: models, fractions of the data, and a budget. This does not import torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitkit.errors import VitkitError
from vitkit.system import exclusive_in, is_empty
from vitkit.training import Recipe

# Fields that a comparison sets itself, or that would split one run into several.
_REFUSED_FIELDS = ("data", "model", "folds", "devices", "nodes")


def names_of(models: str | Sequence[str]) -> list[str]:
    """Return the requested models as a list; a string is split at its commas."""
    parts = models.split(",") if isinstance(models, str) else models
    names = [str(part).strip() for part in parts]
    if not names or not all(names):
        raise VitkitError(
            "experiments.models-invalid",
            "--models must be names separated by commas, such as vit_tiny_patch16_224,NAME@WEIGHTS",
        )
    return names


def fractions_of(fractions: str | float | Sequence[float]) -> tuple[float, ...]:
    """Return the requested fractions of the training images, above 0 and at most 1, in ascending order."""
    parts: Sequence[str | float] = [fractions] if isinstance(fractions, (int, float)) else fractions
    if isinstance(fractions, str):
        parts = fractions.split(",")
    try:
        values = sorted({float(part) for part in parts})
    except (TypeError, ValueError):
        values = []
    if not values or not all(0 < part <= 1 for part in values):
        raise VitkitError(
            "experiments.fractions-invalid",
            f"--fractions must be fractions of 1 separated by commas, such as 0.1,0.3,1, not {fractions!r}",
        )
    return tuple(values)


def max_flops_of(budget: str | None, fields: Mapping[str, object]) -> float | None:
    """Return the FLOPs of a budget such as `flops=1e15`; None if there is no budget.

    A budget is refused if the user has also set `epochs`, because it determines the number of epochs.
    """
    if budget is None:
        return None
    kind, _, amount = budget.partition("=")
    try:
        flops = float(amount)
    except ValueError:
        flops = 0.0
    if kind != "flops" or not 1 <= flops <= 1e30:
        raise VitkitError(
            "experiments.budget-invalid",
            f"--budget must be flops=F, such as flops=1e15, not {budget!r}; for a number of epochs or a duration, use "
            "--set epochs=N or --set time=T",
        )
    if "epochs" in fields:
        raise VitkitError(
            "experiments.budget-twice",
            f"--budget {budget} and --epochs {fields['epochs']} both limit the training: use only one",
        )
    return flops


def arguments_of(
    data: str | Path | None,
    models: str | Sequence[str] | None,
    recipe: str | Path | None,
    seeds: int,
    fractions: str | float | Sequence[float],
    budget: str | None,
) -> dict[str, Any]:
    """Return the arguments of a comparison in plain JSON types, in the form in which the plan stores them."""
    return {
        "data": None if data is None else str(data),
        "models": None if models is None else names_of(models),
        "recipe": None if recipe is None else str(recipe),
        "seeds": seeds,
        "fractions": list(fractions_of(fractions)),
        "budget": budget,
    }


def fields_of_request(recipe: str | Path | Recipe | None, what: str) -> tuple[str | None, dict[str, Any]]:
    """Return the file or name of a requested recipe, and the fields that the caller has set.

    Raises:
        VitkitError: a field may not be set for a comparison or an experiment; `what` names which of them.
    """
    if not isinstance(recipe, Recipe):
        return (None if recipe is None else str(recipe)), {}
    fields = {name: getattr(recipe, name) for name in recipe.named}
    refused = [name for name in _REFUSED_FIELDS if name in fields]
    if refused:
        raise VitkitError("experiments.field-refused", f"{refused[0]} cannot be set for {what}: leave it out")
    return recipe.source, fields


def refuse_divided(fields: Mapping[str, Any]) -> None:
    """Refuse fields that split one training into several."""
    for field in ("folds", "devices", "nodes"):
        if fields.get(field) is not None:
            raise VitkitError(
                "experiments.field-refused",
                f"{field} splits one training into several processes or runs: leave it out to compare",
            )


PLANNED = "the plan"  # where the fields of a planned training come from (`Recipe.of`), instead of from the user


def recipe_of(source: str | None, fields: Mapping[str, Any]) -> Recipe:
    """Return the recipe in a file or of a name, with these fields in place of its own; only these if there is none."""
    recipe = Recipe.of(fields)
    return recipe if source is None else Recipe.load(source).updated(recipe)


@dataclass(frozen=True)
class ExperimentFolder:
    """Access to the folder of a comparison or an experiment, which is locked while it is in use."""

    plan: str  # the name of the file with the plan, which is written first
    what: str  # the word for the content of a folder in messages, such as `comparison`

    def reserve(self, out: str | Path, locks: ExitStack) -> Path:
        """Lock an empty or new folder until `locks` is closed; it is an error if the folder is not empty."""
        locks.enter_context(exclusive_in(Path(out)))
        if (Path(out) / self.plan).is_file():
            raise VitkitError(
                "experiments.folder-taken",
                f"--out {out} contains an earlier {self.what}: continue it with --resume, or choose a new name",
            )
        if not is_empty(Path(out)):
            raise VitkitError("experiments.folder-taken", f"--out {out} is not empty: choose a new name")
        return Path(out)

    def lock(self, out: str | Path | None, locks: ExitStack) -> Path:
        """Lock the folder of an earlier comparison or experiment until `locks` is closed; it must contain a plan."""
        if out is None:
            raise VitkitError(
                "experiments.argument-missing", f"--resume requires --out, the folder of the {self.what} to continue"
            )
        if not (Path(out) / self.plan).is_file():
            raise VitkitError(
                "experiments.plan-missing",
                f"--out {out} contains no {self.what} to continue: it has no {self.plan}; name the folder of an "
                f"earlier {self.what}, or leave out --resume",
            )
        locks.enter_context(exclusive_in(Path(out)))
        return Path(out)
