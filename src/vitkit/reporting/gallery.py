"""Photographs in a page: small, inside it, each over what is said of it."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from vitkit.data.decode import UnreadableImageError, decode
from vitkit.text.html import image

_SIDE = 160  # pixels


def gallery(photographs: Iterable[tuple[Path, Sequence[str]]]) -> str:
    """HTML of photographs with the lines below each; one that can no longer be read is told of in words."""
    return f'<div class="row">{"".join(_cell(path, lines) for path, lines in photographs)}</div>'


def _cell(path: Path, lines: Sequence[str]) -> str:
    caption = "<br>".join(escape(line) for line in lines)
    try:
        picture = decode(path, _SIDE)
    except UnreadableImageError as error:
        return f"<figure><p>{escape(str(error))}</p><figcaption>{caption}</figcaption></figure>"
    picture.thumbnail((_SIDE, _SIDE))
    data = io.BytesIO()
    picture.save(data, "JPEG", quality=75)
    return f"<figure>{image(path.name, data.getvalue(), 'jpeg')}<figcaption>{caption}</figcaption></figure>"
