"""Create matplotlib figures, and write them as PNG, SVG or PDF files.

Functions that draw get their figure from `new_figure`. A caller can use `onto` to make `new_figure` return another
figure: a figure of pyplot, which notebooks display, or a part of a larger figure.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

from vitkit.errors import VitkitError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure, FigureBase

F = TypeVar("F", bound="FigureBase")
Fonts = Literal["sans", "latex"]
KINDS = (".png", ".svg", ".pdf")
_PRINTED_DPI = 300  # of PNG files, and of photographs within the others
# Text stays text, which can be searched and edited; with \includesvg it even gets the fonts of the LaTeX document.
_AS_TEXT: Any = {"svg.fonttype": "none", "pdf.fonttype": 42, "svg.hashsalt": "vitkit"}
# STIX is the Times-like font that comes with matplotlib and has all the letters of Latin, Greek and Cyrillic. Computer
# Modern comes with it too, but without accents, and with other characters in the places of `<`, `>` and `_`.
_LATEX: Any = {"font.family": ["STIXGeneral", "DejaVu Sans"], "mathtext.fontset": "stix", "axes.titlesize": "medium"}
# SVG viewers without STIX fall back to fonts with letters of similar width.
_NAMED, _SIMILAR = "'STIXGeneral'", "'STIXGeneral', 'STIX Two Text', 'Times New Roman', 'Liberation Serif'"

_figure: ContextVar[Callable[..., Any] | None] = ContextVar("figure", default=None)


def new_figure(width: float, height: float, layout: Literal["constrained"] | None = "constrained") -> Figure:
    """Return a figure to draw on: the figure that `onto` has set, or otherwise a new figure, which needs no display.

    Args:
        width: the width of a new figure in inches.
        height: the height of a new figure in inches.
        layout: matplotlib's layout engine for a new figure.
    """
    from matplotlib.figure import Figure

    make = _figure.get() or Figure
    return make(figsize=(width, height), layout=layout)


@contextmanager
def onto(figure: FigureBase | None) -> Iterator[None]:
    """Make `new_figure` return this figure in a `with` block; None makes it return a new figure of pyplot."""
    if figure is None:
        from matplotlib import pyplot

        token = _figure.set(pyplot.figure)
    else:
        token = _figure.set(lambda **_: figure)
    try:
        yield
    finally:
        _figure.reset(token)


def whole_numbers(axis: Axis) -> None:
    """Place the ticks of an axis at whole numbers only, even if only one whole number is within its limits."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


# Fonts for East Asian and Indic scripts on Linux, Windows and macOS; matplotlib's default font lacks these scripts.
_FONTS = (
    *("Noto Sans CJK SC", "Noto Sans CJK JP", "Source Han Sans SC", "Noto Sans SC", "Noto Sans JP", "Noto Sans KR"),
    *("WenQuanYi Zen Hei", "WenQuanYi Micro Hei", "Droid Sans Fallback", "Microsoft YaHei", "SimHei", "Yu Gothic"),
    *("MS Gothic", "Malgun Gothic", "PingFang SC", "Hiragino Sans", "Hiragino Sans GB", "Apple SD Gothic Neo"),
    *("Arial Unicode MS", "Noto Sans Devanagari", "Nirmala UI", "Noto Sans Thai", "Leelawadee UI", "Noto Emoji"),
)
_BEYOND = 0x24F  # the last character of the Latin scripts


def with_all_letters(figure: F) -> F:
    """Add installed fallback fonts to texts with characters beyond Latin, and return the figure."""
    from matplotlib.font_manager import get_font_names
    from matplotlib.text import Text

    texts: list[Text] = figure.findobj(Text)
    others = [text for text in texts if any(ord(character) > _BEYOND for character in text.get_text())]
    if others and (fonts := [name for name in _FONTS if name in set(get_font_names())]):
        for text in others:
            text.set_fontfamily([*text.get_fontfamily(), *fonts])
    return figure


@contextmanager
def fonts_of(fonts: Fonts) -> Iterator[None]:
    """Use these fonts for all figures that are drawn in a `with` block.

    Raises:
        VitkitError: `fonts` is not one of the choices.
    """
    from matplotlib import rc_context

    if fonts not in get_args(Fonts):
        raise VitkitError(f"fonts must be {' or '.join(get_args(Fonts))}, not {fonts!r}")
    with rc_context(_AS_TEXT | (_LATEX if fonts == "latex" else {})):
        yield


def as_file(draw: Callable[[], Figure], kind: str, fonts: Fonts = "sans") -> bytes:
    """Draw a picture, and return the content of a PNG, SVG or PDF file. The same picture gives the same bytes.

    Args:
        draw: the function that draws the picture.
        kind: .png, .svg or .pdf.
        fonts: `latex` sets the text in a serif font.

    Raises:
        VitkitError: `fonts` is not one of the choices.
    """
    metadata: dict[str, dict[str, Any]] = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
    data = io.BytesIO()
    with fonts_of(fonts), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # class names may be in any script
        with_all_letters(draw()).savefig(data, format=kind[1:], dpi=_PRINTED_DPI, metadata=metadata.get(kind))
    content = data.getvalue()
    return content.replace(_NAMED.encode(), _SIMILAR.encode()) if kind == ".svg" else content


def choose_picture(pictures: Mapping[str, Callable[[], Figure]], name: str | None, what: str) -> Callable[[], Figure]:
    """Return the function that draws a requested picture of a result.

    Args:
        pictures: the functions that draw the pictures of the result, by name.
        name: the name of the picture; None selects the first one.
        what: the kind of the result, for the message.

    Raises:
        VitkitError: no picture has this name, or the result has no pictures.
    """
    if not pictures:
        raise VitkitError(f"{what} has no picture")
    if name is None:
        return next(iter(pictures.values()))
    if name not in pictures:
        raise VitkitError(f"{what} has no picture {name!r}: choose from {', '.join(pictures)}")
    return pictures[name]


def plot_picture(
    pictures: Mapping[str, Callable[[], Figure]], name: str | None, what: str, figure: FigureBase | None
) -> list[Axes]:
    """Draw a picture of a result onto a figure, and return its axes. See `choose_picture` and `onto`."""
    draw = choose_picture(pictures, name, what)
    with onto(figure):
        return list(with_all_letters(draw()).axes)


def written_as(target: Path, kinds: tuple[str, ...], *, or_folder: bool = False) -> str:
    """Return the suffix of a file in lower case, after checking that it is supported.

    Args:
        target: the file.
        kinds: the supported suffixes, such as .png.
        or_folder: whether the error message mentions a folder as an alternative.

    Raises:
        VitkitError: the file has none of these suffixes.
    """
    kind = target.suffix.lower()
    if kind not in kinds:
        raise VitkitError(f"{target} must {'be a folder, or ' if or_folder else ''}end in {', '.join(kinds)}")
    return kind
