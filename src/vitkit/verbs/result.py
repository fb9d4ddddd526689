"""`Result`, the base class of the results of all verbs, and `Notes`, which collects remarks for a result."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from html import escape
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from vitkit.errors import VitkitError
from vitkit.model.config import suggest
from vitkit.system.files import path_or_address, replacing
from vitkit.system.logger import log
from vitkit.text.cells import harmless
from vitkit.text.pages import KINDS, as_file, checked_suffix, choose_picture, plot_picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, FigureBase


class Result:
    """What a verb has found or done.

    The facts are attributes, which `dir` lists: `vitkit.export(...).file`. A command prints `lines`, or with `--json`
    the value of `to_dict`. Results with behaviour of their own, such as `Predictions`, are subclasses: frozen
    dataclasses with `repr=False`, which override the methods instead of calling the constructor.

        >>> import vitkit
        >>> found = vitkit.info("vit_base_patch16_224")
        >>> found
        <info: vit_base_patch16_224, 86,567,656 parameters, 17.564 GMACs>
        >>> found.cost.parameters
        86567656

    Args:
        verb: the name of the verb.
        lines: the lines that the command prints.
        facts: what the verb has found, by name.
        json: what `to_dict` returns; by default the facts.
        rows: the table, a dict with the same keys for each row; None if there is none.
        pictures: the functions that draw the pictures, by caption.
        html: the function that returns what notebooks display; by default, they display the lines.
        summary: the line in the `repr`; by default the first of the lines.
        next_step: what the user can do now, with a command; the command line prints it last.
    """

    # The values for subclasses, which do not call the constructor.
    _verb, _headline = "", ""
    _facts: Mapping[str, Any] = MappingProxyType({})
    _pictures: Mapping[str, Callable[[], Figure]] = MappingProxyType({})
    _rows: Sequence[Mapping[str, Any]] | None = None
    _html: Callable[[], str] | None = None
    next_step = ""

    def __init__(
        self,
        verb: str,
        lines: Sequence[str],
        facts: Mapping[str, Any],
        *,
        json: Mapping[str, Any] | None = None,
        rows: Sequence[Mapping[str, Any]] | None = None,
        pictures: Mapping[str, Callable[[], Figure]] | None = None,
        html: Callable[[], str] | None = None,
        summary: str = "",
        next_step: str = "",
    ) -> None:
        self._verb = verb
        self._lines = list(lines)
        self._facts = dict(facts)
        self._json = json or facts
        self._rows = rows
        self._pictures = pictures or {}
        self._html = html
        self._headline = summary
        self.next_step = next_step

    def __getattr__(self, name: str) -> Any:
        if name in self._facts:
            return self._facts[name]
        raise AttributeError(f"{self._kind} has no {name!r}{suggest(name, list(self._facts))}")

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._facts]

    @property
    def _kind(self) -> str:
        return f"the result of {self._verb}" if self._verb else type(self).__name__

    def to_dict(self) -> dict[str, Any]:
        """Return the content in plain JSON types: numbers, text, lists and dicts."""
        plain: dict[str, Any] = as_json(self._json)
        return plain

    def lines(self) -> list[str]:
        """Return the lines that the command prints."""
        return list(self._lines)

    def rows(self) -> list[dict[str, Any]]:
        """Return the table of the result as a list of dicts with the same keys, one dict for each row.

        Raises:
            VitkitError: this kind of result has no table.
        """
        if self._rows is None:
            raise VitkitError("verbs.table-missing", f"{self._kind} has no table; to_dict() returns what it has")
        return [dict(row) for row in self._rows]

    def to_pandas(self) -> Any:
        """Return the table (`rows`) as a `pandas.DataFrame`, for which pandas must be installed.

        Raises:
            VitkitError: this kind of result has no table.
        """
        import pandas

        return pandas.DataFrame(self.rows())

    def pictures(self) -> dict[str, Callable[[], Figure]]:
        """Return the functions that draw the pictures of the result, by caption. Most kinds of results have none."""
        return dict(self._pictures)

    def plot(self, picture: str | None = None, figure: FigureBase | None = None) -> list[Axes]:
        """Draw a picture of the result with matplotlib, and return its axes, which can be changed.

        To write the picture to a file, use `axes[0].figure.savefig("x.pdf")` or `save`.

        Args:
            picture: the caption of the picture, one of `pictures`; by default the first.
            figure: the figure or subfigure to draw on; by default a new figure of pyplot, which notebooks show.

        Raises:
            VitkitError: the result has no such picture, or no pictures at all.
        """
        return plot_picture(self.pictures(), picture, self._kind, figure)

    def save(self, target: str | Path, picture: str | None = None) -> Path:
        """Write a picture of the result (.png, .svg, .pdf) or its table (.csv), and return the path.

        SVG and PDF files contain text as text, not as outlines. LaTeX's `\\includesvg` sets this text in the fonts of
        the document.

        Args:
            target: the file, whose suffix is its format. An existing file is replaced.
            picture: the caption of the picture, one of `pictures`; by default the first.

        Raises:
            VitkitError: the suffix is not one of these, or the result has no such picture or no table.
            OSError: the file cannot be written.
        """
        target = Path(target)
        kind = checked_suffix(target, (*KINDS, ".csv"))
        if kind == ".csv":
            content = csv_table(self.rows()).encode()
        else:
            content = as_file(choose_picture(self.pictures(), picture, self._kind), kind)
        with replacing(target) as temporary:
            temporary.write_bytes(content)
        return target

    def __repr__(self) -> str:
        lines = [self._headline] if self._headline else self.lines()
        return f"<{self._verb or type(self).__name__}: {lines[0] if lines else ''}>"

    def _repr_html_(self) -> str:
        """Return what notebooks display, as HTML."""
        if self._html is not None:
            return self._html()
        return "<pre>" + escape("\n".join(self.lines())) + "</pre>"


def as_json(value: Any) -> Any:
    """Convert a value to plain JSON types. Paths become text, and dataclasses become dicts of their fields."""
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if is_dataclass(value):
        return as_json({field.name: getattr(value, field.name) for field in fields(value)})
    if isinstance(value, Mapping):
        return {str(name): as_json(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_json(item) for item in value]
    return path_or_address(value) if isinstance(value, Path) else value


def csv_table(rows: Sequence[Mapping[str, Any]], end: str = "\r\n") -> str:
    """Format rows, which all have the same keys, as CSV. Text is escaped, so that it is not read as a formula."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator=end)
    writer.writeheader()
    for row in rows:
        writer.writerow({key: harmless(cell) if isinstance(cell, str) else cell for key, cell in row.items()})
    return text.getvalue()


@dataclass(frozen=True)
class Notes:
    """A callable that collects notes in `lines`, and logs each note."""

    lines: list[str] = field(default_factory=list)

    def __call__(self, line: str) -> None:
        self.lines.append(line)
        log.warning(line)
