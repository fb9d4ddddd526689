"""Create figures to draw on, and write pictures as PNG for screens, or as SVG or PDF for pages and theses.

A function that draws a picture begins with `new_figure`. The caller decides what this returns: a new figure, a figure
of pyplot, which a notebook shows, or a part of a larger figure (`onto`).
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
# A viewer of an SVG file that lacks STIX takes a font whose letters are as wide.
_NAMED, _SIMILAR = "'STIXGeneral'", "'STIXGeneral', 'STIX Two Text', 'Times New Roman', 'Liberation Serif'"

_figure: ContextVar[Callable[..., Any] | None] = ContextVar("figure", default=None)


def new_figure(width: float, height: float, layout: Literal["constrained"] | None = "constrained") -> Figure:
    """Return the figure to draw on: a new one, which needs no screen, or the one that `onto` names.

    Args:
        width: its width in inches if it is a new one.
        height: its height in inches.
        layout: how its parts are placed if it is a new one.
    """
    from matplotlib.figure import Figure

    make = _figure.get() or Figure
    return make(figsize=(width, height), layout=layout)


@contextmanager
def onto(figure: FigureBase | None) -> Iterator[None]:
    """Let `new_figure` return this figure or subfigure in a `with` block; None stands for a new figure of pyplot."""
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
    """Put the ticks of an axis at whole numbers, also if it shows only one."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


# Fonts with the letters of East Asian and Indic scripts, which matplotlib's font lacks, on Linux, Windows and macOS.
_FONTS = (
    *("Noto Sans CJK SC", "Noto Sans CJK JP", "Source Han Sans SC", "Noto Sans SC", "Noto Sans JP", "Noto Sans KR"),
    *("WenQuanYi Zen Hei", "WenQuanYi Micro Hei", "Droid Sans Fallback", "Microsoft YaHei", "SimHei", "Yu Gothic"),
    *("MS Gothic", "Malgun Gothic", "PingFang SC", "Hiragino Sans", "Hiragino Sans GB", "Apple SD Gothic Neo"),
    *("Arial Unicode MS", "Noto Sans Devanagari", "Nirmala UI", "Noto Sans Thai", "Leelawadee UI", "Noto Emoji"),
)
_BEYOND = 0x24F  # the last character of the Latin scripts


def with_all_letters(figure: F) -> F:
    """Let texts in other scripts use the fonts of this machine that have their letters, and return the figure."""
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
    """Draw with these fonts in a `with` block.

    Raises:
        VitkitError: there are no such fonts.
    """
    from matplotlib import rc_context

    if fonts not in get_args(Fonts):
        raise VitkitError(f"fonts must be {' or '.join(get_args(Fonts))}, not {fonts!r}")
    with rc_context(_AS_TEXT | (_LATEX if fonts == "latex" else {})):
        yield


def as_file(draw: Callable[[], Figure], kind: str, fonts: Fonts = "sans") -> bytes:
    """Return a picture as the content of a PNG, SVG or PDF file, the same bytes each time.

    Args:
        draw: the function that draws it.
        kind: .png, .svg or .pdf.
        fonts: `latex` sets the text in a serif font.

    Raises:
        VitkitError: there are no such fonts.
    """
    metadata: dict[str, dict[str, Any]] = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
    data = io.BytesIO()
    with fonts_of(fonts), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # class names may be in any script
        with_all_letters(draw()).savefig(data, format=kind[1:], dpi=_PRINTED_DPI, metadata=metadata.get(kind))
    content = data.getvalue()
    return content.replace(_NAMED.encode(), _SIMILAR.encode()) if kind == ".svg" else content


def choose_picture(pictures: Mapping[str, Callable[[], Figure]], name: str | None, what: str) -> Callable[[], Figure]:
    """Return the picture of a name, or the first one.

    Args:
        pictures: the functions that draw the pictures of a result, by name.
        name: the requested name; None for the first.
        what: the kind of the result, for the message.

    Raises:
        VitkitError: there is no such picture, or none at all.
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
    """Draw a picture of a result, chosen as by `choose_picture`, onto a figure as `onto` does; return its axes."""
    draw = choose_picture(pictures, name, what)
    with onto(figure):
        return list(with_all_letters(draw()).axes)


def written_as(target: Path, kinds: tuple[str, ...], *, or_folder: bool = False) -> str:
    """Return the suffix of a file in small letters.

    Args:
        target: the file.
        kinds: the suffixes that are possible.
        or_folder: whether the message says that a folder would do, too.

    Raises:
        VitkitError: the file has none of these suffixes.
    """
    kind = target.suffix.lower()
    if kind not in kinds:
        raise VitkitError(f"{target} must {'be a folder, or ' if or_folder else ''}end in {', '.join(kinds)}")
    return kind
