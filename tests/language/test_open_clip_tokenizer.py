"""OpenCLIP's own tokenizer: token ids of open_clip on texts in several scripts, from its file of merges."""

from __future__ import annotations

import gzip
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import open_clip.tokenizer
import pytest

import wordy
from vitkit.errors import VitkitError
from vitkit.language import MERGES, read_tokenizer

TEXTS = [
    *wordy.sentences(1000),
    "A &amp;lt; B",
    "“curly” ﬁne ﬀ ＦＵＬＬ",  # noqa: RUF001
    "x\u0000y",
    "<end_of_text> a",
    "I'LL we'Ve",
    "под_чёрк",
]


def folder_of(path: Path, **text: Any) -> Path:
    """As OpenCLIP writes it for a model with its own tokenizer, which it does not put there."""
    path.mkdir(exist_ok=True)
    (path / "open_clip_config.json").write_text(json.dumps({"model_cfg": {"text_cfg": text}}))
    return path


def merges_beside(path: Path) -> Path:
    shutil.copy(open_clip.tokenizer.default_bpe(), path / MERGES)
    return path


@pytest.mark.parametrize("clean", ["lower", "whitespace", "canonicalize"])
def test_ids_are_open_clips(tmp_path: Path, clean: str) -> None:
    folder = merges_beside(folder_of(tmp_path, tokenizer_kwargs={} if clean == "lower" else {"clean": clean}))
    ours = read_tokenizer(folder, 20, "none")
    theirs = open_clip.tokenizer.SimpleTokenizer(context_length=20, clean=clean)
    expected = theirs(TEXTS).tolist()
    assert ours(TEXTS) == expected
    assert len({tuple(row) for row in expected}) > 900


def test_the_file_is_found_beside_the_weights_or_where_open_clip_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = read_tokenizer(folder_of(tmp_path / "told"), 77, "none")
    (tmp_path / "bare").mkdir()
    bare = read_tokenizer(merges_beside(tmp_path / "bare"), 77, "none")
    assert told(["a red tulip"]) == bare(["a red tulip"]) == open_clip.tokenizer.tokenize(["a red tulip"]).tolist()
    monkeypatch.setattr("vitkit.language.tokenizer.find_spec", lambda name: None)
    with pytest.raises(VitkitError, match=f"has no tokenizer.*{MERGES} is enough"):
        read_tokenizer(tmp_path / "told", 77, "none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(VitkitError, match="has no tokenizer"):
        read_tokenizer(tmp_path / "empty", 77, "none")


def test_another_tokenizer_than_it_is_refused(tmp_path: Path) -> None:
    with pytest.raises(VitkitError, match=r"put the tokenizer\.json of timm/ViT-B-16-SigLIP beside"):
        read_tokenizer(merges_beside(folder_of(tmp_path, hf_tokenizer_name="timm/ViT-B-16-SigLIP")), 77, "none")
    for odd in ({"clean": "odd"}, {"reduction_mask": "simple"}):
        with pytest.raises(VitkitError, match="tokenizer_kwargs"):
            read_tokenizer(folder_of(tmp_path, tokenizer_kwargs=odd), 77, "none")
    with gzip.open(merges_beside(folder_of(tmp_path)) / MERGES, "rt", encoding="utf-8") as text:
        lines = text.read().split("\n")
    with gzip.open(tmp_path / MERGES, "wt", encoding="utf-8") as text:
        text.write("\n".join(lines[:1000]))  # else each word has the ids of other tokens
    with pytest.raises(VitkitError, match=r"damaged: it has 1,513 tokens, but OpenAI's tokenizer has 49,408"):
        read_tokenizer(tmp_path, 77, "none")
    (tmp_path / MERGES).write_bytes(b"no archive")
    with pytest.raises(VitkitError, match="its tokenizer is damaged"):
        read_tokenizer(folder_of(tmp_path), 77, "none")


def test_what_needs_ftfy_says_so_where_it_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = read_tokenizer(folder_of(tmp_path), 77, "none")
    monkeypatch.setitem(sys.modules, "ftfy", None)
    assert own(["a red tulip"])
    with pytest.raises(VitkitError, match=r"naïve.* requires the library ftfy: pip install"):
        own(["naïve"])
