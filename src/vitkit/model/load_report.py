"""`LoadReport`: what happened to every tensor of a checkpoint, so that no model is loaded only in part unnoticed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from vitkit.text.cells import listed

UNTRAINED_HEAD = "the head is all zeros: every class is as likely as any other until it is trained"


@dataclass(frozen=True)
class Resized:
    """A parameter that was interpolated for another image or patch size.

    Attributes:
        name: the parameter.
        old: its grid or kernel in the checkpoint.
        new: its grid or kernel in the model.
        convention: the library whose interpolation was used.
    """

    name: str
    old: tuple[int, ...]
    new: tuple[int, ...]
    convention: str


@dataclass(frozen=True, kw_only=True)
class LoadReport:
    """What happened to the tensors of a checkpoint and of the model that was loaded from it.

    Attributes:
        source: the file, folder or name that was loaded.
        format: the recognised format.
        parameters: the number of tensors of the model.
        matched: tensors of the model that came from the checkpoint.
        renamed: the matched tensors that have another name in the checkpoint, or are split there: ours -> theirs.
        resized: the matched tensors that were fitted to another size.
        replaced: tensors of the model that are new, and the reasons.
        dropped: tensors of the checkpoint that the model does not use, and the reasons.
        missing: tensors of the model that the checkpoint lacks (only with allow_partial).
        left_over: tensors of the checkpoint that were not understood (only with allow_partial).
        assumed: facts that the checkpoint does not state, and the values that were assumed.
        warnings: signs that the checkpoint is damaged or was not trained.
        notes: other facts that a careful user would want to know.
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
        """Whether every parameter came from the checkpoint and every tensor of the checkpoint was used."""
        return not (self.missing or self.left_over or self.replaced)

    def caveats(self, *, has_new_head: bool = False) -> list[str]:
        """Return what users of the weights must know, one line each: assumptions and signs of damage.

        Args:
            has_new_head: whether the head was replaced, so that assumptions about its classes do not matter.
        """
        assumed = [f"{name} assumed: {value}" for name, value in self.assumed.items()]
        if has_new_head:
            assumed = [line for line in assumed if not line.startswith("classes ")]
        return [*assumed, *self.warnings, *(note for note in self.notes if note == UNTRAINED_HEAD)]

    def to_dict(self) -> dict[str, Any]:
        """Return the report in plain JSON types."""
        return {**asdict(self), "complete": self.is_complete}

    def lines(self) -> list[str]:
        """Return the report as lines of text."""
        share = 100 * len(self.matched) / self.parameters
        lines = [f"{self.format}: {len(self.matched)} of {self.parameters} tensors loaded ({share:.4g} %)"]
        if self.renamed:
            lines.append(f"{len(self.renamed)} renamed")
        lines += [f"resized {it.name}: {_by(it.old)} to {_by(it.new)} ({it.convention})" for it in self.resized]
        lines += [f"new {name}: {reason}" for name, reason in self.replaced.items()]
        lines += _grouped("dropped", self.dropped)
        lines += [f"missing {name}" for name in self.missing]
        lines += [f"left over {name}" for name in self.left_over]
        lines += [f"assumed {name}: {value}" for name, value in self.assumed.items()]
        lines += [f"warning: {warning}" for warning in self.warnings]
        return [*lines, *(f"note: {note}" for note in self.notes)]


def _by(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


def _grouped(verb: str, reasons: Mapping[str, str]) -> list[str]:
    """Return one line for each reason, with the names to which it applies."""
    lines = []
    for reason in dict.fromkeys(reasons.values()):
        names = [name for name in reasons if reasons[name] == reason]
        lines.append(f"{verb} {listed(names)}: {reason}")
    return lines
