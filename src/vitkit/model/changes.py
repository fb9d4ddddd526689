"""Changes to the model of a name, as recipes, flags and callers say them: fields of `ViTConfig` by name and type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from vitkit.errors import VitkitError
from vitkit.model.config import ViTConfig, suggest
from vitkit.model.config_checks import as_pair
from vitkit.model.spellings import canonical
from vitkit.text.fields import as_typed, from_text, hints_of

_PAIRS = ("image_size", "patch_size")  # one number will do
_OF_ALIASES = {"mlp_ratio": float, "distilled": bool, "has_logits": bool}


def settle_changes(changes: Mapping[str, Any]) -> dict[str, Any]:
    """The changes by the fields' own names, each as its field's type; `none` is None where a field may have no value.

    Args:
        changes: what `create_model` takes besides a name.

    Raises:
        VitkitError: a field is unknown (close ones are suggested), or a value of another type.
    """
    return {name: _settled(name, value) for name, value in canonical(changes).items()}


def read_change(name: str, text: str) -> dict[str, Any]:
    """A change whose value is a text, such as a flag's: numbers of a tuple have commas between them.

    Raises:
        VitkitError: as `settle_changes`.
    """
    return {field: _settled(field, _read(field, value)) for field, value in canonical({name: text}).items()}


def _read(name: str, text: str) -> Any:
    is_one = name in _PAIRS and "," not in text
    return from_text(f"model.{name}", int if is_one else _hint(name), text)


def _settled(name: str, value: Any) -> Any:
    hint = _hint(name)
    if name in _PAIRS:
        return as_pair(value, f"model.{name}")
    if value == "none" and type(None) in get_args(hint):
        return None
    return as_typed(f"model.{name}", hint, value)


def _hint(name: str) -> Any:
    hints = {**hints_of(ViTConfig), **_OF_ALIASES}
    if name not in hints:
        meant = suggest(name, list(hints)) or f"; known: {', '.join(hints)}"
        raise VitkitError(f"unknown field model.{name}{meant}")
    return hints[name]
