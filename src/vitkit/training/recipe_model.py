"""The `[model]` table of a recipe and `--set model.FIELD=VALUE`: which fields of a named model are changed.

What the recipe has a field of its own for (`dropout`, `image_size`, ...) is moved there, so that each stands in one
place; docs/decisions/0023-the-model-of-a-recipe.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from vitkit.errors import VitkitError
from vitkit.model.changes import read_change, settle_changes
from vitkit.text.fields import shown

OF_THE_RECIPE = ("image_size", "dropout", "attention_dropout", "drop_path", "init")
_PREFIX = "model."


def read_sets(texts: Iterable[str]) -> dict[str, Any]:
    """The changes that `--set` asks for, by the names of `ViTConfig`'s fields; `name` is the model's.

    Raises:
        VitkitError: a text is none of `model.FIELD=VALUE`, or a field is unknown, given twice, or of another type.
    """
    found: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip().startswith(_PREFIX):
            raise VitkitError(
                f"--set {text}: it sets fields of the model, as in --set model.position=none; those of the recipe are "
                "flags of their own"
            )
        name = key.strip().removeprefix(_PREFIX)
        change = {name: value.strip()} if name == "name" else read_change(name, value.strip())
        for field in change:
            _refuse_twice(field, found, f"--set {_PREFIX}{field}")
        found |= change
    return found


def unfold(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a recipe with those of the model in `model` and `model_fields`, and what is the recipe's own in it.

    Args:
        fields: whose `model` may be a table, as in TOML, and whose `model_fields` may have any field of the model.

    Raises:
        VitkitError: a field of the model is unknown, of another type, decided by the data, or given twice; or a table
            has nothing in it.
    """
    unfolded = dict(fields)
    changes: dict[str, Any] = {}
    for place in ("model", "model_fields"):
        if isinstance(fields.get(place), Mapping):
            if not fields[place]:
                raise VitkitError(f"{place} is empty: name or change something in it, or leave it out")
            for name, value in unfolded.pop(place).items():
                _refuse_twice(name, changes, f"model.{name}")
                changes[name] = value
    check_model_fields(unfolded.get("model_fields"))  # which is no table, or None
    if "name" in changes:
        if unfolded.get("model") is not None:
            raise VitkitError(f"model is given twice, as {unfolded['model']} and as {changes['name']}")
        unfolded["model"] = changes.pop("name")
    changes = settle_changes(changes)
    for name in OF_THE_RECIPE:
        if name in changes:
            if unfolded.get(name) is not None:
                raise VitkitError(f"{name} is given twice, as {name} and as model.{name}: leave out one of them")
            value = changes[name]
            if name != "image_size" or value[0] == value[1]:
                unfolded[name] = changes.pop(name) if name != "image_size" else changes.pop(name)[0]
    if changes:
        unfolded["model_fields"] = changes
    return unfolded


def overlay(fields: Mapping[str, Any], flags: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a recipe, those of its model among them, with flags over them; both unfolded."""
    below = {name: value for name, value in (fields.get("model_fields") or {}).items() if name not in flags}
    above = flags.get("model_fields") or {}
    merged = {**fields, **flags, "model_fields": {**below, **above}}
    if "image_size" in above:  # one that is not square takes the place of a side
        merged.pop("image_size", None)
    return merged if merged["model_fields"] else {k: v for k, v in merged.items() if k != "model_fields"}


def check_model_fields(changes: Any) -> dict[str, Any] | None:
    """The changes as a recipe keeps them; None where there are none.

    Raises:
        VitkitError: they are no such changes, or the recipe or the data have a field for one.
    """
    if changes is None or (isinstance(changes, Mapping) and not changes):
        return None
    if not isinstance(changes, Mapping) or not all(isinstance(name, str) for name in changes):
        raise VitkitError(f"model_fields must be a table of the model's fields, not {shown(changes)}")
    settled = settle_changes(changes)
    if "num_classes" in settled:
        raise VitkitError("model.num_classes is what the data have: leave it out")
    for name in OF_THE_RECIPE:
        if name in settled and not (name == "image_size" and settled[name][0] != settled[name][1]):
            raise VitkitError(f"{name} is a field of the recipe itself, not one of model_fields")
    return settled


def to_table(name: str | None, changes: Mapping[str, Any]) -> dict[str, Any]:
    """The `[model]` table of TOML, which has no word for None."""
    plain = {key: "none" if v is None else list(v) if isinstance(v, tuple) else v for key, v in changes.items()}
    return plain if name is None else {"name": name, **plain}


def in_words(changes: Mapping[str, Any]) -> str:
    """`position none, layers 6`."""
    return ", ".join(
        f"{name} {','.join(map(str, value)) if isinstance(value, tuple) else str(value).lower()}"
        for name, value in changes.items()
    )


def _refuse_twice(name: str, found: Mapping[str, Any], what: str) -> None:
    if name in found:
        raise VitkitError(f"{what} is given twice: leave out one of them")
