"""Read what a user asks of a comparison: models, fractions of the data, and a budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitkit.errors import VitkitError
from vitkit.system.files import exclusive_in, from_json, is_empty

# Fields that a comparison sets itself, or that would make of one run several.
NOT_COMPARED = ("data", "model", "folds", "devices", "nodes", "strategy", "select_time")


def names_of(models: str | Sequence[str]) -> list[str]:
    """Return the requested models as a list; a string is split at its commas.

    Raises:
        VitkitError: there is none, or one is empty.
    """
    names = [str(name).strip() for name in (models.split(",") if isinstance(models, str) else models)]
    if not names or not all(names):
        raise VitkitError("--models must be names with commas between them, such as vit_tiny_patch16_224,NAME@WEIGHTS")
    return names


def fractions_of(fractions: str | float | Sequence[float]) -> tuple[float, ...]:
    """Return the requested fractions of the training images, in ascending order.

    Raises:
        VitkitError: one is no number above 0 and up to 1.
    """
    parts = fractions.split(",") if isinstance(fractions, str) else fractions
    try:
        values = sorted({float(part) for part in ([parts] if isinstance(parts, (int, float)) else parts)})
    except (TypeError, ValueError):
        values = []
    if not values or not all(0 < part <= 1 for part in values):
        raise VitkitError(
            f"--fractions must be parts of 1 with commas between them, such as 0.1,0.3,1, not {fractions!r}"
        )
    return tuple(values)


def budget_of(budget: str | None, fields: Mapping[str, object]) -> tuple[str, str] | None:
    """Return the kind of the budget of each training, and its size.

    Raises:
        VitkitError: it is none of the three kinds, or a field says otherwise.
    """
    if budget is None:
        return None
    kind, equals, amount = budget.partition("=")
    if kind not in ("epochs", "time", "flops") or not equals:
        raise VitkitError(f"--budget must be epochs=N, time=T (90s, 10m, 2h) or flops=F, not {budget!r}")
    other = {"epochs": "epochs", "time": "time", "flops": "epochs"}[kind]
    if other in fields:
        raise VitkitError(f"--budget {budget} and --{other} {fields[other]} both say how long: leave out one of them")
    try:
        if kind == "epochs" and not 1 <= int(amount) <= 1e9:
            raise ValueError
        if kind == "flops" and not 1 <= float(amount) <= 1e30:
            raise ValueError
    except ValueError:
        wanted = {"epochs": "a whole number above 0", "flops": "a number such as 1e15"}[kind]
        raise VitkitError(f"--budget {kind}= must be {wanted}, not {amount!r}") from None
    return kind, amount


def refuse_not_compared(fields: Mapping[str, object], what: str) -> None:
    """Refuse fields that are not for the caller to choose.

    Raises:
        VitkitError: one is among them.
    """
    if refused := [name for name in NOT_COMPARED if name in fields]:
        raise VitkitError(f"{refused[0]} is no choice of {what}: leave it out")


@dataclass(frozen=True)
class ExperimentFolder:
    """The folder of a comparison or an experiment: an empty one to begin in, or the one to continue, by its plan.

    Attributes:
        plan: the file that is there from the beginning.
        what: what the folder holds, in a word.
    """

    plan: str
    what: str

    def reserve(self, out: str | Path, hold: ExitStack) -> Path:
        """Hold the folder that is asked for, to begin there.

        Raises:
            VitkitError: another process holds it, or there is something in it.
        """
        hold.enter_context(exclusive_in(Path(out)))
        if (Path(out) / self.plan).is_file():
            article = "an" if self.what[0] in "aeiou" else "a"
            raise VitkitError(
                f"--out {out} holds {article} {self.what}: --resume to go on with it, or choose a new name"
            )
        if not is_empty(Path(out)):
            raise VitkitError(f"--out {out} is not empty: choose a new name")
        return Path(out)

    def lock(self, out: str | Path | None, hold: ExitStack) -> Path:
        """Hold the folder again in which it was begun.

        Raises:
            VitkitError: none is named, nothing was begun there, or another process holds it.
        """
        if out is None:
            raise VitkitError(f"--resume goes on with the {self.what} in --out: name it")
        if not (Path(out) / self.plan).is_file():
            raise VitkitError(f"--out {out} holds no {self.what} to go on with: it has no {self.plan}")
        hold.enter_context(exclusive_in(Path(out)))
        return Path(out)

    def read(self, folder: Path) -> dict[str, Any]:
        """Read the plan.

        Raises:
            VitkitError: it is damaged.
        """
        try:
            stored: dict[str, Any] = dict(from_json((folder / self.plan).read_text(encoding="utf-8")))
        except (ValueError, TypeError) as error:
            raise self.damaged(folder) from error
        return stored

    def damaged(self, folder: Path) -> VitkitError:
        """Return the error for a plan that cannot be read."""
        return VitkitError(f"{folder / self.plan} is damaged: begin the {self.what} anew in another folder")
