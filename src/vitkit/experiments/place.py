"""The folder of a comparison or of an experiment: a free one to begin in, or the one to go on in, by its plan."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitkit.errors import VitkitError
from vitkit.system.files import from_json, is_empty, sole_in


@dataclass(frozen=True)
class Place:
    """What is written in such folders.

    Attributes:
        plan: the file that is there from the beginning.
        what: what the folder holds, in a word.
    """

    plan: str
    what: str

    def hold_given(self, out: str | Path, hold: ExitStack) -> Path:
        """Hold the folder that is asked for, to begin there.

        Raises:
            VitkitError: another process holds it, or there is something in it.
        """
        hold.enter_context(sole_in(Path(out)))
        if (Path(out) / self.plan).is_file():
            article = "an" if self.what[0] in "aeiou" else "a"
            raise VitkitError(
                f"--out {out} holds {article} {self.what}: --resume to go on with it, or choose a new name"
            )
        if not is_empty(Path(out)):
            raise VitkitError(f"--out {out} is not empty: choose a new name")
        return Path(out)

    def hold_again(self, out: str | Path | None, hold: ExitStack) -> Path:
        """Hold the folder again in which it was begun.

        Raises:
            VitkitError: none is named, nothing was begun there, or another process holds it.
        """
        if out is None:
            raise VitkitError(f"--resume goes on with the {self.what} in --out: name it")
        if not (Path(out) / self.plan).is_file():
            raise VitkitError(f"--out {out} holds no {self.what} to go on with: it has no {self.plan}")
        hold.enter_context(sole_in(Path(out)))
        return Path(out)

    def read(self, folder: Path) -> dict[str, Any]:
        """What was written at the beginning.

        Raises:
            VitkitError: it is damaged.
        """
        try:
            found: dict[str, Any] = dict(from_json((folder / self.plan).read_text(encoding="utf-8")))
        except (ValueError, TypeError) as error:
            raise self.damaged(folder) from error
        return found

    def damaged(self, folder: Path) -> VitkitError:
        """That the plan cannot be understood."""
        return VitkitError(f"{folder / self.plan} is damaged: begin the {self.what} anew in another folder")
