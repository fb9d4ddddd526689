"""What became of every tensor of a checkpoint, so that nothing loads by half unnoticed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from vitkit.text.cells import listed

UNTRAINED_HEAD = "the head is all zeros: every class is as likely as any other until it is trained"  # a note


@dataclass(frozen=True)
class Resized:
    """A parameter fitted to another image or patch size: shapes (as grids or kernels), and whose interpolation."""

    name: str
    old: tuple[int, ...]
    new: tuple[int, ...]
    convention: str


@dataclass(frozen=True, kw_only=True)
class LoadReport:
    """The story of one load.

    Attributes:
        source: file, folder or name that was loaded.
        format: what it was recognised as.
        parameters: tensors of the model.
        matched: those that came from the checkpoint.
        renamed: of these, the ones with another name or in several tensors there: ours -> theirs.
        resized: of these, the ones fitted to another size.
        replaced: tensors of the model that are new, and why.
        dropped: tensors of the checkpoint that the model has no use for, and why.
        missing: tensors of the model that the checkpoint lacks (with allow_partial only).
        left_over: tensors of the checkpoint that were not understood (with allow_partial only).
        assumed: what the checkpoint does not say, and what was taken for it.
        warnings: what looks as if the checkpoint were damaged, or not trained.
        notes: what else a careful user would want to know.
    """

    source: str
    format: str
    parameters: int
    matched: tuple[str, ...]
    renamed: Mapping[str, str] = field(default_factory=dict)
    resized: tuple[Resized, ...] = ()
    replaced: Mapping[str, str] = field(default_factory=dict)
    dropped: Mapping[str, str] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    left_over: tuple[str, ...] = ()
    assumed: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def is_complete(self) -> bool:
        """Whether every parameter came from the checkpoint and every tensor of it found its place."""
        return not (self.missing or self.left_over or self.replaced)

    def caveats(self, *, has_new_head: bool = False) -> list[str]:
        """What whoever uses the weights must know, a line each: what had to be assumed, and what looks damaged.

        Args:
            has_new_head: whether the head is replaced, and with it the classes that it was assumed to have.
        """
        assumed = [f"{name} assumed: {taken}" for name, taken in self.assumed.items()]
        if has_new_head:
            assumed = [line for line in assumed if not line.startswith("classes ")]
        return [*assumed, *self.warnings, *(note for note in self.notes if note == UNTRAINED_HEAD)]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {**asdict(self), "complete": self.is_complete}

    def lines(self) -> list[str]:
        """The report as text, a line for each thing that is worth one."""
        share = 100 * len(self.matched) / self.parameters
        lines = [f"{self.format}: {len(self.matched)} of {self.parameters} tensors loaded ({share:.4g} %)"]
        if self.renamed:
            lines.append(f"{len(self.renamed)} renamed")
        lines += [f"resized {it.name}: {_by(it.old)} to {_by(it.new)} ({it.convention})" for it in self.resized]
        lines += [f"new {name}: {reason}" for name, reason in self.replaced.items()]
        lines += _grouped("dropped", self.dropped)
        lines += [f"missing {name}" for name in self.missing]
        lines += [f"left over {name}" for name in self.left_over]
        lines += [f"assumed {name}: {taken}" for name, taken in self.assumed.items()]
        lines += [f"warning: {warning}" for warning in self.warnings]
        return [*lines, *(f"note: {note}" for note in self.notes)]


def _by(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


def _grouped(verb: str, reasons: Mapping[str, str]) -> list[str]:
    """One line for each reason."""
    lines = []
    for reason in dict.fromkeys(reasons.values()):
        names = [name for name in reasons if reasons[name] == reason]
        lines.append(f"{verb} {listed(names)}: {reason}")
    return lines
