"""The kinds of stress and their strengths. `stress` has the functions that apply them; this module needs no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vitkit.errors import VitkitError

GRID = 14  # patches along a side, as in a picture of 224 pixels with patches of 16


@dataclass(frozen=True)
class Stress:
    """One way to make pictures harder.

    Attributes:
        name: the name by which users request it.
        title: the name in a heading.
        unit: the unit of the strength.
        about: a sentence that describes the change.
        strengths: the strengths in ascending order; the first leaves pictures unchanged.
    """

    name: str
    title: str
    unit: str
    about: str
    strengths: tuple[float, ...]


STRESSES: dict[str, Stress] = {
    stress.name: stress
    for stress in (
        Stress(
            "occlusion",
            "patches dropped",
            "part of the patches that is black",
            f"Random patches of a {GRID} x {GRID} grid are black; a higher strength adds to those of a lower.",
            (0.0, 0.25, 0.5, 0.75, 0.9),
        ),
        Stress(
            "shuffle",
            "patches shuffled",
            "cells along a side",
            "The cells of a grid are put in another order, so that what is in them stays and where it is does not.",
            (1.0, 2.0, 4.0, 8.0),
        ),
        Stress(
            "texture",
            "fine texture removed",
            "width of the median filter, % of the short side",
            "A median filter takes fine texture away and leaves outlines; a model that lives by texture loses by it.",
            (0.0, 2.0, 4.0, 6.0),
        ),
        Stress(
            "patch",
            "a patch pasted",
            "part of the area",
            "A rectangle of random colours is pasted somewhere.",
            (0.0, 0.05, 0.1, 0.2, 0.4),
        ),
        Stress(
            "jpeg",
            "JPEG compression",
            "100 less the quality",
            "Stored as JPEG by this quality, and read again.",
            (0.0, 50.0, 80.0, 90.0, 95.0),
        ),
        Stress(
            "blur",
            "blurred",
            "standard deviation, % of the short side",
            "A Gaussian blur takes away fine detail and outlines alike.",
            (0.0, 0.5, 1.0, 2.0, 4.0),
        ),
    )
}


def stresses_of(names: str | Sequence[str]) -> tuple[str, ...]:
    """Return the names of the requested stresses without repetitions; a string is split at its commas.

    Raises:
        VitkitError: a name is unknown.
    """
    parts = [part.strip() for part in names.split(",")] if isinstance(names, str) else list(names)
    chosen = tuple(dict.fromkeys(part for part in parts if part))
    for name in chosen:
        if name not in STRESSES:
            raise VitkitError(f"--stress {name!r} is none of {', '.join(STRESSES)}")
    return chosen
