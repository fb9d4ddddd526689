"""`Result`, the base class of the results of all verbs, and `Notes`, which collects remarks for a result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

from vitkit.errors import VitkitError
from vitkit.system.progress import Say


class Result:
    """The base class of the results of verbs. Subclasses are frozen dataclasses with `repr=False`.

    A command prints `lines`, or with `--json` the value of `to_dict`. The first line is also part of the `repr`.
    """

    def to_dict(self) -> dict[str, Any]:
        """Return the content in plain JSON types: numbers, text, lists and dicts."""
        raise NotImplementedError

    def lines(self) -> list[str]:
        """Return the lines that the command prints."""
        raise NotImplementedError

    def rows(self) -> list[dict[str, Any]]:
        """Return the table of the result, a dict for each row, with the same keys in each.

        Raises:
            VitkitError: this kind of result has no table.
        """
        raise VitkitError(f"{type(self).__name__} has no table; to_dict() returns what it has")

    def to_pandas(self) -> Any:
        """Return the table (`rows`) as a `pandas.DataFrame`.

        Raises:
            VitkitError: this kind of result has no table, or pandas is not installed.
        """
        rows = self.rows()
        try:
            import pandas
        except ImportError as error:
            raise VitkitError("to_pandas requires pandas (pip install pandas); rows() works without it") from error
        return pandas.DataFrame(rows)

    def to_latex(self, caption: str | None = None, label: str | None = None) -> str:
        """Return the table (`rows`) as LaTeX with the rules of the package booktabs, in text that LaTeX can set.

        Args:
            caption: the caption, as text; with it or a label the table is a float.
            label: the name for references, as in `tab:classes`.

        Raises:
            VitkitError: this kind of result has no table.
        """
        return latex_table(self.rows(), caption, label)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {next(iter(self.lines()), '')}>"

    def _repr_html_(self) -> str:
        """Return the lines for a notebook."""
        return "<pre>" + escape("\n".join(self.lines())) + "</pre>"


_LATEX = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "\\": r"\textbackslash{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
}


def latex_text(text: str) -> str:
    """Return text with the special characters of LaTeX escaped."""
    return "".join(_LATEX.get(character, character) for character in " ".join(text.split()))


def latex_table(rows: Sequence[Mapping[str, Any]], caption: str | None = None, label: str | None = None) -> str:
    """Return rows with the same keys as a LaTeX table: text to the left, numbers to the right."""
    keys = list(rows[0]) if rows else []
    numbers = {key: all(isinstance(row[key], (int, float, type(None))) for row in rows) for key in keys}
    lines = [" & ".join(latex_text(_latex_cell(row[key])) for key in keys) + r" \\" for row in rows]
    heading = " & ".join(latex_text(key.replace("_", " ")) for key in keys) + r" \\"
    columns = "".join("r" if numbers[key] else "l" for key in keys)
    body = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", heading, r"\midrule", *lines]
    body += [r"\bottomrule", r"\end{tabular}"]
    if caption is None and label is None:
        return "\n".join(body) + "\n"
    said = [] if caption is None else [rf"\caption{{{latex_text(caption)}}}"]
    named = [] if label is None else [rf"\label{{{label}}}"]
    return "\n".join([r"\begin{table}", r"\centering", *said, *named, *body, r"\end{table}"]) + "\n"


def _latex_cell(value: Any) -> str:
    if value is None or (isinstance(value, float) and value != value):
        return ""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_latex_cell, value))
    return str(value)


@dataclass(frozen=True)
class Notes:
    """Collect notes in `lines`, and pass each on to `say`."""

    say: Say
    lines: list[str] = field(default_factory=list)

    def __call__(self, line: str) -> None:
        self.lines.append(line)
        self.say(line)
