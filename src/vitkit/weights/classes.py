"""Class names of heads that come without any."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from vitkit.model.names import IMAGENET_21K
from vitkit.system.files import from_json
from vitkit.system.run_files import CLASS_INDICES

_NAMED = {
    1000: ("imagenet_classes.txt", "ImageNet's names"),
    IMAGENET_21K: ("imagenet21k_classes.txt", "ImageNet-21k's names in the order of Google's files"),
}


def class_names(count: int) -> tuple[tuple[str, ...], str]:
    """Names for a head of so many classes, and on what ground they were taken."""
    if count not in _NAMED:
        return tuple(map(str, range(count))), f"numbers, as the checkpoint names none of its {count} classes"
    file, whose = _NAMED[count]
    text = resources.files("vitkit.weights").joinpath(file).read_text(encoding="utf-8")
    return tuple(text.splitlines()), f"{whose}, as the head has {count} classes"


def imagenet_synsets() -> dict[str, str]:
    """The names of ImageNet's classes by WordNet's ids, `n01440764` and so on."""
    folder = resources.files("vitkit.weights")
    ids, names = (
        folder.joinpath(f"imagenet_{what}.txt").read_text(encoding="utf-8").splitlines()
        for what in ("synsets", "classes")
    )
    return dict(zip(ids, names, strict=True))


def names_beside(weights: Path, count: int) -> tuple[tuple[str, ...] | None, str | None]:
    """Names for a head of so many classes from the `class_indices.json` beside its weights, and a note on them.

    Both ways of writing it are read: {"0": "daisy"} and {"daisy": 0}. There are no names where there is no such file,
    or where it does not number as many classes from 0 on; what is wrong with it is then the note.
    """
    path = (weights if weights.is_dir() else weights.parent) / CLASS_INDICES
    if not path.is_file():
        return None, None
    try:
        numbered = numbered_names(from_json(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError, AttributeError, OSError) as error:
        return None, f"{CLASS_INDICES} beside the weights was passed over: it does not name classes by number ({error})"
    if len(numbered) != count:
        return None, f"{CLASS_INDICES} beside the weights was passed over: it names {len(numbered)} classes for {count}"
    return numbered, f"classes are named by {CLASS_INDICES} beside the weights"


def numbered_names(mapping: dict[str, str | int]) -> tuple[str, ...]:
    """The names of a class_indices.json, in the order of their numbers.

    Raises:
        ValueError: it does not number them from 0 on, each once.
    """
    by_number = {int(key): name for key, name in mapping.items() if isinstance(name, str)}
    by_number = by_number or {number: name for name, number in mapping.items() if type(number) is int}
    if sorted(by_number) != list(range(len(mapping))):
        raise ValueError("expected every number from 0 on, once")
    return tuple(by_number[number] for number in range(len(mapping)))


def unique(names: Sequence[str]) -> tuple[str, ...]:
    """Names of which no two are the same: ImageNet has two cranes, one a bird and one a machine."""
    first: dict[str, int] = {}
    return tuple(name if first.setdefault(name, i) == i else f"{name} ({i})" for i, name in enumerate(names))
