"""OpenCLIP's own tokenizer: token ids of open_clip on texts in several scripts."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import open_clip.tokenizer
import pytest

import wordy
from vitkit.errors import VitkitError
from vitkit.language import read_tokenizer

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


@pytest.mark.parametrize("clean", ["lower", "whitespace", "canonicalize"])
def test_ids_are_open_clips(tmp_path: Path, clean: str) -> None:
    folder = folder_of(tmp_path, tokenizer_kwargs={} if clean == "lower" else {"clean": clean})
    ours = read_tokenizer(folder, 20, "none")
    theirs = open_clip.tokenizer.SimpleTokenizer(context_length=20, clean=clean)
    expected = theirs(TEXTS).tolist()
    assert ours(TEXTS) == expected
    assert len({tuple(row) for row in expected}) > 900


def test_another_tokenizer_than_it_is_refused(tmp_path: Path) -> None:
    with pytest.raises(VitkitError, match=r"put the tokenizer\.json of timm/ViT-B-16-SigLIP beside"):
        read_tokenizer(folder_of(tmp_path, hf_tokenizer_name="timm/ViT-B-16-SigLIP"), 77, "none")
    for odd in ({"clean": "odd"}, {"reduction_mask": "simple"}):
        with pytest.raises(VitkitError, match="tokenizer_kwargs"):
            read_tokenizer(folder_of(tmp_path, tokenizer_kwargs=odd), 77, "none")


def test_without_open_clip_a_line_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "open_clip.tokenizer", None)
    with pytest.raises(VitkitError, match="needs the library open_clip: pip install open_clip_torch"):
        read_tokenizer(folder_of(tmp_path), 77, "none")
