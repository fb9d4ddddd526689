"""`Result`, the base class of the results of all verbs, and `Notes`, which collects remarks for a result."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape
from typing import Any

from vitkit.system.progress import Say


class Result:
    """The result of a verb. Subclasses are frozen dataclasses with `repr=False`.

    A command prints `lines`, or with `--json` `to_dict`. The first line is also the `repr`.
    """

    def to_dict(self) -> dict[str, Any]:
        """Return the content in plain JSON types: numbers, text, lists and dicts."""
        raise NotImplementedError

    def lines(self) -> list[str]:
        """Return the lines that the command prints."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {next(iter(self.lines()), '')}>"

    def _repr_html_(self) -> str:
        """Return the lines for a notebook."""
        return "<pre>" + escape("\n".join(self.lines())) + "</pre>"


@dataclass(frozen=True)
class Notes:
    """Pass each note on to `say`, and collect it in `lines`."""

    say: Say
    lines: list[str] = field(default_factory=list)

    def __call__(self, line: str) -> None:
        self.lines.append(line)
        self.say(line)
