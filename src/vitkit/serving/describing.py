"""How a request may look, in the words of OpenAPI."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from vitkit.explanation.methods import method_names

TOP = 5  # classes that are named, if nothing else is asked
_MODEL = {
    "model": "the model's name; the first by default",
    "version": "the beginning of its version; the last of several by default",
}
OPTIONS = {  # of each route that takes pictures, with what each means
    "/predict": {
        **_MODEL,
        "top": f"classes to name for each picture, the most probable first; {TOP} by default",
        "reject": "withhold the label below this confidence, 0 to 1",
    },
    "/explain": {
        **_MODEL,
        "method": f"one of {', '.join(method_names())}; gradient by default",
        "target": "the class that is explained: its name or number; top, the most probable, by default",
        "layer": "for the methods that look at one layer, -1 the last",
        "format": "json, or png for the map upon the picture",
    },
    "/embed": {
        **_MODEL,
        "what": "head (what the head reads, by default), class (the class token), mean (the patches' mean) or patches",
    },
}
_TEXT = {"type": "string"}
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


def _asking(options: Iterable[str]) -> dict[str, Any]:
    """The bodies that bring pictures: files of a form, base64 in JSON, or one file as it is."""
    fields = dict.fromkeys(options, _TEXT)
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


def described(path: str) -> dict[str, Any]:
    """What a route that takes pictures asks for."""
    options = OPTIONS[path]
    said = [{"name": name, "in": "query", "description": told, "schema": _TEXT} for name, told in options.items()]
    return {"requestBody": _asking(options), "parameters": said}
