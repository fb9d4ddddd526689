"""Files of tokenizers that would make too much of a text are refused by name, before a text is shown to them."""

from __future__ import annotations

import base64
import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers

import wordy
from vitkit.errors import VitkitError
from vitkit.language import MERGES, MOST_CHARACTERS, check_pieces, check_steps, read_tokenizer


def replace(content: str, pattern: dict[str, str] | None = None) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern or {"String": "a"}, "content": content}


def sequence(*steps: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "normalizers": list(steps)}


def cut(*steps: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "pretokenizers": list(steps)}


def template(*pieces: str, ids: int = 1) -> dict[str, Any]:
    own = [
        {"Sequence": {"id": "A", "type_id": 0}} if p == "A" else {"SpecialToken": {"id": p, "type_id": 0}}
        for p in pieces
    ]
    tokens = {p: {"id": p, "ids": [0] * ids, "tokens": [p] * ids} for p in set(pieces) - {"A"}}
    return {"type": "TemplateProcessing", "single": own, "pair": own, "special_tokens": tokens}


def charsmap(*texts: str) -> bytes:
    """As sentencepiece precompiles it: the size of a tree, a tree, texts."""
    return (8).to_bytes(4, "little") + bytes(8) + b"".join(text.encode() + b"\0" for text in texts)


def precompiled(*texts: str) -> dict[str, Any]:
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(charsmap(*texts)).decode()}


DOUBLING, BYTES = (
    replace("aa"),
    {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
)
NESTED: dict[str, Any] = DOUBLING
for _ in range(40):
    NESTED = sequence(NESTED, DOUBLING)
BOMBS: dict[str, tuple[dict[str, Any], str]] = {
    "doubled forty times": ({"normalizer": sequence(*[DOUBLING] * 40)}, "would turn one character into"),
    "nested": ({"normalizer": NESTED}, "would turn one character into"),
    "so many that numbers end": (
        {"normalizer": sequence(*[replace("a" * 200)] * 200)},
        "would turn one character into",
    ),
    "one long replacement": ({"normalizer": replace("b" * 1_000_000)}, "would turn one character into up to 1,000,000"),
    "beside every character": (
        {"normalizer": replace("b" * 300, {"Regex": "x*"})},
        "would turn one character into up to 301",
    ),
    "of nothing": ({"normalizer": replace("b" * 300, {"String": ""})}, "would turn one character into up to 301"),
    "ahead, again and again": (
        {"normalizer": sequence(*[{"type": "Prepend", "prepend": "ab"}] * 8)},
        "would turn one character into",
    ),
    "a precompiled map": ({"normalizer": precompiled("a", "b" * 300)}, "would turn one character into up to 300"),
    "bytes of bytes": ({"pre_tokenizer": cut(*[BYTES] * 12)}, "would turn one character into"),
    "together": (
        {"normalizer": replace("a" * 100), "pre_tokenizer": cut(BYTES)},
        "would turn one character into up to 400",
    ),
    "a text three times": (
        {"post_processor": template("A", "A", "A")},
        "post_processor must insert the text exactly once",
    ),
    "no text": ({"post_processor": template("S")}, "post_processor must insert the text exactly once"),
    "a token of many": ({"post_processor": template("A", "S", ids=5000)}, "5,000 tokens to each text"),
    "many of them": (
        {"post_processor": {"type": "Sequence", "processors": [template("S", "A", ids=400)] * 3}},
        "1,200 tokens to each text",
    ),
    "a long token": ({"added_tokens": [{"id": 0, "content": "a" * 5000}]}, "added_tokens has 5,000 characters"),
    "an unknown normaliser": ({"normalizer": sequence({"type": "Echo"})}, "normalizer 'Echo' is not known"),
    "an unknown pre-tokenizer": ({"pre_tokenizer": {"type": "Echo"}}, "pre_tokenizer 'Echo' is not known"),
    "an unknown processor": ({"post_processor": {"type": "Echo"}}, "post_processor 'Echo' is not known"),
    "a step without a type": ({"normalizer": {}}, "tokenizer is damaged"),
    "a list": ({"normalizer": [1]}, "tokenizer is damaged"),
    "a map that is cut short": (
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(b"\xff\xff\xff\x7f").decode()}},
        "cut short",
    ),
}


@pytest.mark.parametrize("kind", BOMBS)
def test_a_file_that_would_make_too_much_of_a_text_is_refused_unread(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wordy.clip_tokenizer().save_pretrained(tmp_path)
    changes, told = BOMBS[kind]
    file = tmp_path / "tokenizer.json"
    plain = {"normalizer": None, "pre_tokenizer": None}
    file.write_text(json.dumps({**json.loads(file.read_text()), **plain, **changes}))
    monkeypatch.setattr(tokenizers, "Tokenizer", None)
    with pytest.raises(VitkitError, match=told):
        read_tokenizer(tmp_path, wordy.CONTEXT, "none")


PUBLISHED: dict[str, dict[str, Any]] = {
    "CLIP": {
        "normalizer": sequence({"type": "NFC"}, replace(" ", {"Regex": r"\s+"}), {"type": "Lowercase"}),
        "pre_tokenizer": cut({"type": "Split"}, BYTES),
        "post_processor": {"type": "RobertaProcessing"},
    },
    "T5": {
        "normalizer": sequence(precompiled("ab", "b" * 18), {"type": "Strip"}, replace("▁", {"Regex": " {2,}"})),
        "pre_tokenizer": cut({"type": "WhitespaceSplit"}, {"type": "Metaspace"}),
        "post_processor": template("A", "</s>"),
    },
    "SigLIP": {
        "normalizer": sequence(
            {"type": "Lowercase"}, replace("", {"Regex": "[!?]"}), replace(" ", {"Regex": r"\s+"}), {"type": "Strip"},
            precompiled("b" * 18),
        ),
        "pre_tokenizer": {"type": "Metaspace"},
        "post_processor": template("A", "</s>"),
    },
    "Gemma": {
        "normalizer": replace("▁", {"String": " "}),
        "pre_tokenizer": {"type": "Split"},
        "post_processor": template("A"),
    },
    "BERT": {
        "normalizer": {"type": "BertNormalizer"},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": template("[CLS]", "A", "[SEP]"),
    },
    "none": {"normalizer": None, "pre_tokenizer": None, "post_processor": None},
}  # fmt: skip


@pytest.mark.parametrize("kind", PUBLISHED)
def test_the_steps_of_published_tokenizers_are_allowed(tmp_path: Path, kind: str) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(PUBLISHED[kind]))
    check_steps(tmp_path / "tokenizer.json")


def test_pieces_that_would_make_too_much_of_a_character_are_refused(tmp_path: Path) -> None:
    def field(number: int, content: bytes) -> bytes:
        size = len(content)
        return bytes([number << 3 | 2, size & 0x7F | 0x80, size >> 7 & 0x7F | 0x80, size >> 14]) + content

    file = tmp_path / "spiece.model"
    wordy.siglip_tokenizer(tmp_path)
    honest = file.read_bytes()
    check_pieces(file)
    file.write_bytes(honest + field(3, field(2, charsmap("a", "b" * 1000))))
    with pytest.raises(VitkitError, match=r"spiece\.model: its normalizer would turn one character into up to 1,000"):
        read_tokenizer(tmp_path, wordy.CONTEXT, "lower")
    for cut_short in (honest[:-3], b"\x1a\xff\xff\xff\x7f", b"\xff" * 20, b"\x1a\x03\x12\x05a"):
        file.write_bytes(cut_short)
        with pytest.raises(VitkitError, match="tokenizer is damaged"):
            read_tokenizer(tmp_path, wordy.CONTEXT, "lower")


def test_a_text_that_is_too_long_is_refused(tmp_path: Path) -> None:
    wordy.clip_tokenizer().save_pretrained(tmp_path)
    own = read_tokenizer(tmp_path, wordy.CONTEXT, "none")
    assert len(own(["a " * (MOST_CHARACTERS // 2)])[0]) == wordy.CONTEXT
    with pytest.raises(VitkitError, match="a text of 4,098 characters is too long"):
        own(["a " * (MOST_CHARACTERS // 2) + "ab"])


def test_an_expression_that_takes_too_long_is_given_up_in_a_line(tmp_path: Path) -> None:
    wordy.clip_tokenizer().save_pretrained(tmp_path)
    file = tmp_path / "tokenizer.json"
    stored = json.loads(file.read_text())
    steps = [stored["normalizer"], replace("", {"Regex": "(z+)+#"})]
    file.write_text(json.dumps({**stored, "normalizer": {"type": "Sequence", "normalizers": steps}}))
    with pytest.raises(VitkitError, match=r"the tokenizer cannot be used: .*retry-limit"):
        read_tokenizer(tmp_path, wordy.CONTEXT, "none")(["z" * 40 + "!"])


def test_merges_that_unpack_to_very_much_are_not_unpacked(tmp_path: Path) -> None:
    with gzip.open(tmp_path / MERGES, "wb") as file:
        for _ in range(20):
            file.write(b"a" * 2**20)
    with pytest.raises(VitkitError, match="unpacks to more than"):
        read_tokenizer(tmp_path, 77, "none")
