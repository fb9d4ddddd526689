"""Draw matplotlib figures, and write pages: self-contained HTML files without external resources, which open offline.

Functions that draw get their figure from `new_figure`. Within `plot_picture`, it returns another figure: one of pyplot,
which notebooks display, or a part of a larger figure. `as_file` returns the content of a PNG, SVG or PDF file, and
`to_png` and `to_svg` return pictures for a page. `write_page` writes a page from fragments of HTML, and the functions
below it return such fragments. Importing this module does not import matplotlib.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import logging
import re
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from html import escape, unescape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from vitkit.errors import VitkitError
from vitkit.system.files import write_text

if TYPE_CHECKING:
    from jinja2 import Environment
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure, FigureBase

F = TypeVar("F", bound="FigureBase")
KINDS = (".png", ".svg", ".pdf")
DPI = 110  # of figures in pages
_PRINTED_DPI = 300  # of PNG files, and of photographs within the others
# Text stays text, which can be searched and edited; with \includesvg it even gets the fonts of the LaTeX document.
_AS_TEXT: Any = {"svg.fonttype": "none", "pdf.fonttype": 42, "svg.hashsalt": "vitkit"}

_figure: ContextVar[Callable[..., Any] | None] = ContextVar("figure", default=None)


def new_figure(width: float, height: float, layout: Literal["constrained"] | None = "constrained") -> Figure:
    """Return a figure to draw on: the one that `plot_picture` has set, or otherwise a new figure outside of pyplot.

    A new figure has this width and height in inches, and needs no display.
    """
    from matplotlib.figure import Figure

    make = _figure.get() or Figure
    return make(figsize=(width, height), layout=layout)


def whole_numbers(axis: Axis) -> None:
    """Place the ticks of an axis at whole numbers only, even if only one whole number is within its limits."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


# Fonts for East Asian and Indic scripts, Thai, Arabic and emoji on Linux, Windows and macOS. The first is matplotlib's
# default font, which lacks most of these.
_FONTS = (
    "DejaVu Sans",
    *("Noto Sans CJK SC", "Noto Sans CJK JP", "Source Han Sans SC", "Noto Sans SC", "Noto Sans JP", "Noto Sans KR"),
    *("WenQuanYi Zen Hei", "WenQuanYi Micro Hei", "Droid Sans Fallback", "Microsoft YaHei", "SimHei", "Yu Gothic"),
    *("MS Gothic", "Malgun Gothic", "PingFang SC", "Hiragino Sans", "Hiragino Sans GB", "Apple SD Gothic Neo"),
    *("Noto Sans CJK KR", "Noto Sans CJK TC", "Source Han Sans", "Microsoft JhengHei", "AR PL UMing CN", "SimSun"),
    *("IPAGothic", "IPAexGothic", "TakaoPGothic", "VL Gothic", "Meiryo", "NanumGothic", "UnDotum", "Baekmuk Dotum"),
    *("Arial Unicode MS", "Noto Sans Devanagari", "Nirmala UI", "Noto Sans Thai", "Leelawadee UI", "Loma", "Tahoma"),
    *("Noto Sans Arabic", "Noto Naskh Arabic", "Geeza Pro", "Noto Emoji", "Symbola", "Segoe UI Emoji", "GNU Unifont"),
)
_LAST_LATIN = 0x24F  # the last character of the Latin scripts


def shorten(name: str, max_length: int = 22) -> str:
    """Return a name as a picture can show it: one line of at most `max_length` characters, escaped for matplotlib."""
    text = " ".join(name.encode(errors="replace").decode().split())  # the name of a folder may not be UTF-8
    text = text if len(text) <= max_length else text[: max_length - 1] + "…"
    return text.replace("$", r"\$")  # matplotlib reads dollars as mathematics


def with_all_letters(figure: F) -> F:
    """Add installed fallback fonts to texts with characters beyond Latin, and return the figure."""
    from matplotlib.font_manager import fontManager, get_font
    from matplotlib.text import Text

    installed = {font.name: font.fname for font in fontManager.ttflist if font.name in _FONTS}
    fallbacks = [name for name in _FONTS if name in installed]
    letters: set[int] = set()  # code points beyond Latin
    for text in figure.findobj(Text):
        beyond_latin = {ord(letter) for letter in text.get_text() if ord(letter) > _LAST_LATIN}
        if beyond_latin:
            text.set_fontfamily([*text.get_fontfamily(), *fallbacks])
            letters |= beyond_latin
    if letters:
        fonts = [get_font(file) for file in installed.values()]
        if not all(any(font.get_char_index(letter) for font in fonts) for letter in letters):
            _note_missing_letters()
    return figure


@cache
def _note_missing_letters() -> None:  # once
    logging.getLogger(__name__).warning(
        "note: no installed font has all characters of some names, so pictures show boxes instead: install one that "
        "has them, such as Noto Sans CJK"
    )


def as_file(draw: Callable[[], Figure], kind: str) -> bytes:
    """Draw a picture, and return the content of a .png, .svg or .pdf file. The same picture gives the same bytes."""
    from matplotlib import rc_context

    metadata: dict[str, dict[str, Any]] = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
    with rc_context(_AS_TEXT):
        return _rendered(draw(), kind[1:], dpi=_PRINTED_DPI, metadata=metadata.get(kind))


def to_png(drawn: Figure) -> bytes:
    """Return a drawn figure as the content of a PNG file."""
    return _rendered(drawn, "png", dpi=DPI)


def to_svg(drawn: Figure) -> bytes:
    """Return a drawn figure as the content of an SVG file, with text as outlines. The bytes are reproducible."""
    from matplotlib import rc_context

    with rc_context({"svg.hashsalt": "vitkit"}):
        return _rendered(drawn, "svg", metadata={"Date": None})


def _rendered(drawn: Figure, kind: str, **options: Any) -> bytes:
    data = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # class names may be in any script
        with_all_letters(drawn).savefig(data, format=kind, **options)
    return data.getvalue()


def choose_picture(pictures: Mapping[str, Callable[[], Figure]], name: str | None, what: str) -> Callable[[], Figure]:
    """Return the function that draws a picture of a result by its name; None selects the first one.

    `what` names the kind of the result in messages.
    """
    if not pictures:
        raise VitkitError("text.picture-missing", f"{what} has no picture")
    if name is None:
        return next(iter(pictures.values()))
    if name not in pictures:
        raise VitkitError("text.picture-missing", f"{what} has no picture {name!r}: choose from {', '.join(pictures)}")
    return pictures[name]


def plot_picture(
    pictures: Mapping[str, Callable[[], Figure]], name: str | None, what: str, figure: FigureBase | None
) -> list[Axes]:
    """Draw a picture of a result, and return its axes; see `choose_picture` for the first arguments.

    It is drawn onto `figure`, or onto a new figure of pyplot if `figure` is None.
    """
    draw = choose_picture(pictures, name, what)
    if figure is None:
        from matplotlib import pyplot

        token = _figure.set(pyplot.figure)
    else:
        token = _figure.set(lambda **_: figure)
    try:
        return list(with_all_letters(draw()).axes)
    finally:
        _figure.reset(token)


def checked_suffix(target: Path, suffixes: tuple[str, ...], *, or_folder: bool = False) -> str:
    """Return the suffix of a file in lower case. If it is not one of `suffixes`, raise an error.

    With `or_folder`, the message mentions a folder as an alternative.
    """
    suffix = target.suffix.lower()
    if suffix not in suffixes:
        raise VitkitError(
            "text.suffix-wrong", f"{target} must {'be a folder, or ' if or_folder else ''}end in {', '.join(suffixes)}"
        )
    return suffix


# --- Pages ----------------------------------------------------------------------------------------------------

DATA = '<script type="application/json" id="data">'  # precedes the data of an interactive page
TEMPLATES = Path(__file__).parent / "templates"  # of the components that all pages share
LOOK = TEMPLATES.parent / "static" / "look.css"  # the style sheet of all pages
_LONG_WORD = 14  # characters; longer words are broken in the heading of a table


@dataclass(frozen=True)
class Live:
    """The interactive part of a page.

    Attributes:
        styles: CSS in addition to that of all pages.
        script: a JavaScript module without imports.
        data: plain JSON values, which the script reads from the element `data`.
    """

    styles: str
    script: str
    data: Any


def write_page(path: Path, title: str, body: str | Sequence[str], live: Live | None = None) -> None:
    """Write an HTML page, completely or not at all.

    The title is plain text, and the body HTML, such as that of `from_template`, or fragments of HTML. The page's
    Content-Security-Policy forbids all requests, and all scripts except those of the page itself.
    """
    content = body if isinstance(body, str) else "\n".join(body)
    styles = LOOK.read_text(encoding="utf-8") + ("" if live is None else live.styles)
    allowed = (
        f"default-src 'none'; img-src data:; style-src '{source_hash(styles)}'; base-uri 'none'; form-action 'none'"
    )
    if live is not None:
        allowed += f"; script-src '{source_hash(live.script)}'"
    head = (
        f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta http-equiv="Content-Security-Policy" content="{allowed}">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{styles}</style>\n'
    )
    parts = [f'<main class="sheet">\n{content}\n</main>']
    if live is not None:
        parts += [f"{DATA}{script_data(live.data)}</script>", f'<script type="module">{live.script}</script>']
    page = head + "\n".join(parts) + "\n</html>\n"
    write_text(path, page.encode("utf-8", "replace").decode())  # "?" for bytes of file names that are not UTF-8


def from_template(template: Path, **values: Any) -> str:
    """Return the HTML of a Jinja template, which can import the components of all pages from `components.html`.

    Values are escaped; HTML that functions of this module have returned is passed on with `| safe`.
    """
    return _templates(template.parent).get_template(template.name).render(**values)


def component(name: str, *values: Any, **options: Any) -> str:
    """Return the HTML of one component of `templates/components.html`."""
    return str(getattr(_templates(TEMPLATES).get_template("components.html").module, name)(*values, **options))


@cache
def _templates(folder: Path) -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    return Environment(
        loader=FileSystemLoader([folder, TEMPLATES]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def panel(title: str, *content: str, name: str = "") -> str:
    """Return a section with a heading (plain text); the content is HTML, and `name` the target of links to it."""
    heading = f'<h2 id="{escape(name)}">' if name else "<h2>"
    return f'<section class="panel">{heading}{escape(title)}</h2>{"".join(content)}</section>'


def panels(*sections: str) -> str:
    """Return sections side by side, where there is room."""
    return f'<div class="panels">{"".join(sections)}</div>'


def details(title: str, *content: str) -> str:
    """Return a collapsed section: its content (HTML) is hidden until its title (plain text) is clicked."""
    return f'<details class="panel"><summary>{escape(title)}</summary>{"".join(content)}</details>'


def folded(title: str, content: str, *, is_open: bool = False) -> str:
    """Return a part of a section that is hidden until its title (plain text) is clicked; the content is HTML."""
    return f"<details{' open' if is_open else ''}><summary>{escape(title)}</summary>{content}</details>"


_MARKS = {"# ": "h3", "## ": "h3", "- ": "ul", "    ": "pre"}  # of Markdown, with the tags of HTML


def markdown_blocks(text: str) -> list[tuple[str, list[list[str]]]]:
    """Divide the Markdown of a model card into headings (h3), paragraphs (p), lists (ul) and commands (pre).

    Returns:
        The tag and the items of each block. An item alternates between plain text and code.

    >>> markdown_blocks("# A model\\n\\n- by `vitkit`\\n- and you")
    [('h3', [['A model']]), ('ul', [['by ', 'vitkit', ''], ['and you']])]
    """
    blocks: list[tuple[str, list[list[str]]]] = []
    for line in filter(None, text.splitlines()):
        mark = next((mark for mark in _MARKS if line.startswith(mark)), "")
        tag = _MARKS.get(mark, "p")
        words = line.removeprefix(mark)
        if tag == "pre":
            item = [words]
        else:
            item = re.split(r"(?<!\\)`", words)  # the parts with odd indices are code
            item[::2] = [re.sub(r"\\(.)", r"\1", part) for part in item[::2]]  # without escapes
        if tag in ("ul", "pre") and blocks and blocks[-1][0] == tag:
            blocks[-1][1].append(item)
        else:
            blocks.append((tag, [item]))
    return blocks


def split_level(sentence: str) -> tuple[str, str]:
    """Divide `note: a sentence` into its level and the sentence; without a level, it is a warning."""
    level, colon, text = sentence.partition(": ")
    if colon and level in ("problem", "warning", "note"):
        return level, text.strip()
    return "warning", sentence


def source_hash(text: str) -> str:
    """Return the hash that allows an inline style or script in a Content-Security-Policy."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def script_data(value: Any) -> str:
    """Return plain JSON values as the text of a script element.

    Characters with a meaning in HTML are escaped, so that no value can end the element.
    """
    data = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character, escaped in (("<", r"\u003c"), (">", r"\u003e"), ("&", r"\u0026")):
        data = data.replace(character, escaped)
    return data


def finding(text: str) -> str:
    """Return a sentence of plain text as a highlighted paragraph, with an icon for its level (see `split_level`)."""
    return component("finding", *split_level(text))


def decimals(value: float | None) -> str:
    """Format a number with three decimals, or None as a dash."""
    return "-" if value is None else f"{value:.3f}"


def table(rows: Sequence[Sequence[str]], header: Sequence[str] = (), words: Collection[str] = ()) -> str:
    """Return an HTML table, whose cells and headings are HTML.

    If there is a header, all columns except the first and those with headings in `words` are formatted as numbers.
    """
    is_number = [i > 0 and heading not in words for i, heading in enumerate(header)]

    def line(cells: Sequence[str], tag: str) -> str:
        html = "<tr>"
        for i, cell in enumerate(cells):
            classes = ["number"] if header and is_number[i] else []
            if tag == "th":
                heading_words = re.sub(r"<[^>]*>", "", cell).split()  # without the tags
                if any(len(unescape(word)) > _LONG_WORD for word in heading_words):
                    classes.append("long")
            html += f'<{tag} class="{" ".join(classes)}">' if classes else f"<{tag}>"
            html += f"{cell}</{tag}>"
        return html + "</tr>"

    lines = [line(header, "th")] if header else []
    lines += [line(row, "td") for row in rows]
    return "<table>" + "\n".join(lines) + "</table>"


def wide(table: str) -> str:
    """Wrap a wide table in a container that scrolls horizontally, by mouse or keyboard."""
    return f'<div class="wide" role="region" tabindex="0" aria-label="Table">{table}</div>'


def figure(caption: str, data: bytes, kind: str = "png") -> str:
    """Return a panel with a drawing, a file of the kind png or svg+xml. Its white background is dark on dark pages."""
    return panel(caption, component("drawing", caption, data_uri(data, kind)))


def command(text: str) -> str:
    """Return a command as a paragraph that breaks lines only between words, not at the hyphens of flags."""
    return f'<p class="soft"><code>{" ".join(f"<span>{escape(word)}</span>" for word in text.split())}</code></p>'


def image(name: str, data: bytes, kind: str, attributes: str = "") -> str:
    """Return a picture, a file of the kind png, jpeg or svg+xml, embedded in the page.

    `name` is the alternative text, and `attributes` are further attributes of the tag, as HTML.
    """
    further = f" {attributes}" if attributes else ""
    return f'<img alt="{escape(name)}"{further} src="{data_uri(data, kind)}">'


def data_uri(data: bytes, kind: str) -> str:
    """Return a picture as a data URI."""
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"
