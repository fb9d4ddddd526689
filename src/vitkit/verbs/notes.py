"""What the reader of a result should know: told as it comes, and kept for the result."""

from __future__ import annotations

from dataclasses import dataclass, field

from vitkit.system.progress import Say


@dataclass(frozen=True)
class Notes:
    """Passes each note on to `say`, and keeps it."""

    say: Say
    lines: list[str] = field(default_factory=list)

    def __call__(self, line: str) -> None:
        self.lines.append(line)
        self.say(line)
