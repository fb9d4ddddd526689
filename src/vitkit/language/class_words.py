"""Names of classes as words: which of them a text encoder may be asked about, and how they are put to it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from vitkit.text.names import bare
from vitkit.weights.classes import imagenet_synsets

_SYNSET = re.compile(r"n\d{8}")
# Letters in a row: two at least, as `b2` says nothing; of scripts other than Latin's first page, one is a word.
_WORD = re.compile(r"[^\W\d_]{2,}|[^\W\d_a-zA-Z]")
_PLACEHOLDERS = {"class", "classes", "category", "label", "id", "idx", "cluster", "group", "type", "item", "cls"}


def spoken(names: Sequence[str]) -> tuple[str, ...]:
    """Names as a text has them: spaces for underscores, nothing unseen, and WordNet's ids by their names."""
    known = imagenet_synsets() if any(_SYNSET.fullmatch(name) for name in names) else {}
    return tuple(known.get(name, " ".join(bare(name).replace("_", " ").split())) for name in names)


def why_no_words(names: Sequence[str]) -> str | None:
    """Why a text encoder should not be asked about classes of these names; None: it may be.

    Every name needs a word, and other words than all the others: `class_1` and `class_2` differ in a number alone.
    """
    told: dict[tuple[str, ...], str] = {}
    for name, text in zip(names, spoken(names), strict=True):
        if _SYNSET.fullmatch(text) or not {word.casefold() for word in _WORD.findall(text)} - _PLACEHOLDERS:
            return f"{name!r} is no word"
        if _SYNSET.fullmatch(name):  # ImageNet has two cranes
            continue
        letters = tuple(re.findall(r"[^\W\d_]+", text.casefold()))
        if (other := told.setdefault(letters, name)) != name:
            return f"{other!r} and {name!r} differ in no word"
    return None
