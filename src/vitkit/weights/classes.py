"""Class names of heads that come without any."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources

from vitkit.names import IMAGENET_21K


def class_names(count: int) -> tuple[tuple[str, ...], str]:
    """Names for a head of so many classes, and on what ground they were taken."""
    if count == 1000:
        text = resources.files("vitkit.weights").joinpath("imagenet_classes.txt").read_text(encoding="utf-8")
        return tuple(text.splitlines()), "ImageNet's names, as the head has 1000 classes"
    which = " (ImageNet-21k)" if count == IMAGENET_21K else ""
    return tuple(map(str, range(count))), f"numbers, as the checkpoint names none of its {count} classes{which}"


def unique(names: Sequence[str]) -> tuple[str, ...]:
    """Names of which no two are the same: ImageNet has two cranes, one a bird and one a machine."""
    first: dict[str, int] = {}
    return tuple(name if first.setdefault(name, i) == i else f"{name} ({i})" for i, name in enumerate(names))
