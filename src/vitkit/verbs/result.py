"""What every result of a verb can do: be shown in a line, in a notebook, and as plain values.

What the reader of a result should know: told as it comes, and kept for the result.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape
from typing import Any

from vitkit.system.progress import Say


class Result:
    """The outcome of a verb. A subclass is a frozen dataclass with `repr=False` that says what is in it.

    `to_dict` is what the command prints with `--json`, where it has that flag; `repr` is its first line.
    """

    def to_dict(self) -> dict[str, Any]:
        """Numbers, text, lists and dicts alone."""
        raise NotImplementedError

    def lines(self) -> list[str]:
        """What the command prints, line by line."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {next(iter(self.lines()), '')}>"

    def _repr_html_(self) -> str:
        """As notebooks show it."""
        return "<pre>" + escape("\n".join(self.lines())) + "</pre>"


@dataclass(frozen=True)
class Notes:
    """Passes each note on to `say`, and keeps it."""

    say: Say
    lines: list[str] = field(default_factory=list)

    def __call__(self, line: str) -> None:
        self.lines.append(line)
        self.say(line)
