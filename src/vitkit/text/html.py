"""Pieces of HTML pages that are one file each: they open offline, years later, on any machine."""

from __future__ import annotations

import base64
import io
import warnings
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from vitkit.system.files import write_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DPI = 110  # of drawn figures

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { overflow-wrap: anywhere; margin-bottom: 0; } h2 { margin-top: 2.2rem; border-bottom: 1px solid var(--line); }
.figure { font-size: 2.6rem; font-weight: 600; } .soft { opacity: .75; }
table { border-collapse: collapse; } td, th { padding: .2rem .8rem .2rem 0; text-align: left; vertical-align: top; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
tr + tr td { border-top: 1px solid var(--line); }
img { max-width: 100%; background: white; border: 1px solid var(--line); }
.finding { background: var(--soft); border-left: 4px solid #E69F00; padding: .3rem .8rem; margin: .4rem 0; }
.row { display: flex; flex-wrap: wrap; gap: .8rem; } figure { margin: 0; width: 10rem; font-size: .75rem; }
figcaption { overflow-wrap: anywhere; }
pre { background: var(--soft); padding: .8rem; overflow-x: auto; }
.wide { overflow-x: auto; } .wide td { white-space: nowrap; }
.wide td:first-child, .wide th:first-child { position: sticky; left: 0; background: Canvas; }
.pictures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); gap: 0 1.5rem; }
.wide th { overflow-wrap: anywhere; min-width: 7rem; } p, li { overflow-wrap: break-word; }
"""


def write_page(path: Path, title: str, body: Sequence[str]) -> None:
    """Write a page, whole or not at all; `body` is its HTML, piece by piece."""
    head = (
        f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style>\n'
    )
    write_text(path, head + "\n".join(body) + "\n</html>\n")


def finding(text: str) -> str:
    """A sentence that the reader should not miss."""
    return f'<p class="finding">{escape(text)}</p>'


def decimals(value: float | None) -> str:
    """Three of them; a dash for a figure that there is none of."""
    return "-" if value is None else f"{value:.3f}"


def table(rows: Sequence[Sequence[str]], header: Sequence[str] = ()) -> str:
    """A table of cells that are HTML already; below a header all but the first column are numbers."""

    def line(cells: Sequence[str], tag: str) -> str:
        kinds = ["", *[' class="number"' if header else ""] * (len(cells) - 1)]
        return (
            "<tr>" + "".join(f"<{tag}{kind}>{cell}</{tag}>" for kind, cell in zip(kinds, cells, strict=True)) + "</tr>"
        )

    lines = [line(header, "th")] if header else []
    return "<table>" + "\n".join(lines + [line(row, "td") for row in rows]) + "</table>"


def wide(table: str) -> str:
    """A table of many columns, which is moved sideways on a narrow screen."""
    return f'<div class="wide">{table}</div>'


def to_png(drawn: Figure) -> bytes:
    """A drawn figure as the content of a PNG file."""
    data = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # class names may be in any script
        drawn.savefig(data, format="png", dpi=DPI)
    return data.getvalue()


def figure(caption: str, png: bytes) -> str:
    """A picture under its caption, inside the page."""
    return f"<h2>{escape(caption)}</h2>{image(caption, png, 'png')}"


def image(name: str, data: bytes, kind: str) -> str:
    """A picture inside the page; `kind` is its format, png or jpeg."""
    return f'<img alt="{escape(name)}" src="data:image/{kind};base64,{base64.b64encode(data).decode()}">'
