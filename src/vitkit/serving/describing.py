"""How a request may look, in the words of OpenAPI."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

_SAID = {
    "model": "the model's name; the first by default",
    "version": "the beginning of its version; the last of several by default",
}
_BINARY = {"type": "string", "format": "binary"}
_ONE = {
    "oneOf": [
        {"type": "string", "format": "byte"},
        {
            "type": "object",
            "properties": {"path": {"type": "string"}, "data": {"type": "string", "format": "byte"}},
            "required": ["data"],
        },
    ]
}


def asking(options: Iterable[str]) -> dict[str, Any]:
    """The bodies that bring pictures: files of a form, base64 in JSON, or one file as it is."""
    fields = {name: {"type": "string"} for name in options}
    files = {"image": {"type": "array", "items": _BINARY}}
    images = {"image": _ONE, "images": {"type": "array", "items": _ONE}}
    return {
        "required": True,
        "description": "Pictures; the options may stand beside them instead of in the address.",
        "content": {
            "multipart/form-data": {"schema": {"type": "object", "properties": files | fields}},
            "application/json": {"schema": {"type": "object", "properties": images | fields}},
            "image/*": {"schema": _BINARY},
        },
    }


def options_of(names: Iterable[str], said: Mapping[str, str]) -> list[dict[str, Any]]:
    """Options in the address, each with what it means."""
    told = {**_SAID, **said}
    return [{"name": own, "in": "query", "description": told[own], "schema": {"type": "string"}} for own in names]
