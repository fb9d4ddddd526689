"""How much a tokenizer may make of a text: its file comes from anybody, and is measured before it is used.

A `tokenizer.json` lists what happens to a text, step by step. A step that writes three letters for each one, listed
forty times, makes more of a word than any memory holds. So each step's most is multiplied, and what is more than any
published tokenizer needs is refused by name. So are steps that are not known.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from vitkit.errors import VitkitError
from vitkit.system.files import from_json
from vitkit.system.protobuf import fields_of

MOST_CHARACTERS = 4096  # of a text
_MOST_GROWTH = 256  # characters of one; CLIP's make up to 48 of one, and T5's 72
_MOST_ADDED = 1000  # tokens around a text

# The most characters that a step makes of one. Unicode's longest decompositions have 18 (U+FDFA) and 4.
_NORMALIZERS = {
    "NFC": 3,
    "NFD": 4,
    "NFKC": 18,
    "NFKD": 18,
    "Lowercase": 3,
    "Strip": 1,
    "StripAccents": 1,
    "Nmt": 1,
    "BertNormalizer": 12,  # spaces around a Chinese character, or its accents apart and in small letters
    "ByteLevel": 4,  # the bytes of a character
}
_PRE_TOKENIZERS = {
    "BertPreTokenizer": 1,
    "ByteLevel": 4,
    "CharDelimiterSplit": 1,
    "Digits": 1,
    "FixedLength": 1,
    "Metaspace": 2,  # a mark ahead of each word
    "Punctuation": 1,
    "Split": 1,
    "UnicodeScripts": 1,
    "Whitespace": 1,
    "WhitespaceSplit": 1,
}
_PROCESSORS = {"BertProcessing": 2, "RobertaProcessing": 2, "ByteLevel": 0}  # tokens that they add
_CHARSMAP = 2  # the number of the field in sentencepiece's NormalizerSpec
_NORMALIZER_SPEC = 3  # and of that in its ModelProto


def check_text(text: str) -> None:
    """Refuse a text that is longer than any that a text encoder reads.

    Raises:
        VitkitError: it is.
    """
    if len(text) > MOST_CHARACTERS:
        raise VitkitError(
            f"a text of {len(text):,} characters is too long ({text[:40]!r} ...): text encoders read some dozen words"
        )


def check_steps(path: Path) -> None:
    """Refuse a `tokenizer.json` that would make more of a text than any published one does.

    Raises:
        VitkitError: it would, it is damaged, or it has a step that is not known.
    """
    try:
        stored = from_json(path.read_bytes())
        growth = _normalizing(stored.get("normalizer")) * _cutting(stored.get("pre_tokenizer"))
        added = _adding(stored.get("post_processor"))
        longest = max((len(token["content"]) for token in stored.get("added_tokens") or ()), default=0)
    except VitkitError as error:
        raise VitkitError(f"{path}: {error}") from error
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise VitkitError(f"{path}: its tokenizer is damaged: {error!r:.200}") from error
    if growth > _MOST_GROWTH:
        raise VitkitError(
            f"{path}: its normalizer and pre_tokenizer would make up to {growth:,.0f} characters of one, and those of "
            f"published tokenizers fewer than {_MOST_GROWTH}: it is not used"
        )
    if longest > MOST_CHARACTERS:  # a token goes through the normaliser as soon as the file is read
        raise VitkitError(f"{path}: one of its added_tokens has {longest:,} characters: it is not used")
    if added > _MOST_ADDED:
        raise VitkitError(f"{path}: its post_processor would add {added:,} tokens to each text: it is not used")


def check_pieces(path: Path) -> None:
    """Refuse a `spiece.model` whose normaliser writes more for a character than any published one does.

    Raises:
        VitkitError: it does, or the file is damaged.
    """
    try:
        charsmaps = [
            bytes(charsmap)
            for spec in _fields(memoryview(path.read_bytes()), _NORMALIZER_SPEC)
            for charsmap in _fields(spec, _CHARSMAP)
        ]
        growth = max(map(_longest_replacement, charsmaps), default=1)
    except ValueError as error:
        raise VitkitError(f"{path}: its tokenizer is damaged: {error}") from error
    if growth > _MOST_GROWTH:
        raise VitkitError(
            f"{path}: its normalizer would make up to {growth:,} characters of one, and those of published tokenizers "
            f"fewer than {_MOST_GROWTH}: it is not used"
        )


def _normalizing(step: Any) -> float:
    """The most characters that a normaliser makes of one; none makes one of one."""
    if step is None:
        return 1
    kind = step["type"]
    if kind == "Sequence":
        return math.prod(map(_normalizing, step["normalizers"]), start=1.0)
    if kind == "Replace":
        return _replacing(step["pattern"], step["content"])
    if kind == "Prepend":
        return 1 + len(step["prepend"])
    if kind == "Precompiled":
        return _longest_replacement(base64.b64decode(step["precompiled_charsmap"] or "", validate=True))
    return _known(_NORMALIZERS, kind, "normalizer")


def _replacing(pattern: Mapping[str, str], content: str) -> float:
    """A pattern that may match nothing writes its content beside every character."""
    if literal := pattern.get("String"):
        return max(1.0, len(content) / len(literal))
    return 1 + len(content)


def _cutting(step: Any) -> float:
    """The most characters that what cuts a text into words makes of one."""
    if step is None:
        return 1
    if step["type"] == "Sequence":
        return math.prod(map(_cutting, step["pretokenizers"]), start=1.0)
    return _known(_PRE_TOKENIZERS, step["type"], "pre_tokenizer")


def _adding(step: Any) -> int:
    """How many tokens are put around a text.

    Raises:
        VitkitError: the text itself would be there another number of times than once.
    """
    if step is None:
        return 0
    if step["type"] == "Sequence":
        return sum(map(_adding, step["processors"]))
    if step["type"] != "TemplateProcessing":
        return _known(_PROCESSORS, step["type"], "post_processor")
    if sum("Sequence" in piece for piece in step["single"]) != 1:
        raise VitkitError("its post_processor does not have the text once: it is not used")
    tokens = step["special_tokens"]
    if isinstance(tokens, list):  # as older files have it
        tokens = {token["id"]: token for token in tokens}
    named = [piece["SpecialToken"]["id"] for piece in step["single"] if "SpecialToken" in piece]
    return sum(len(tokens[name]["ids"]) for name in named)


def _known(most: Mapping[str, int], kind: str, where: str) -> int:
    if kind not in most:
        raise VitkitError(f"its {where} {kind!r:.80} is not known: it is not used")
    return most[kind]


# --- sentencepiece's own formats ------------------------------------------------------------------------------


def _longest_replacement(charsmap: bytes) -> int:
    """The characters of the longest text that a precompiled map writes for a character: its texts follow a tree.

    Raises:
        ValueError: it is damaged.
    """
    if not charsmap:
        return 1
    size = int.from_bytes(charsmap[:4], "little")
    if len(charsmap) < 4 or size > len(charsmap) - 4:
        raise ValueError("precompiled_charsmap is cut short")
    return max(len(text.decode("utf-8", "replace")) for text in charsmap[4 + size :].split(b"\0")) or 1


def _fields(message: memoryview, wanted: int) -> Iterator[memoryview]:
    """The content of each field of this number in a message, of those that have a length."""
    return (value for number, value in fields_of(message) if number == wanted and value is not None)
