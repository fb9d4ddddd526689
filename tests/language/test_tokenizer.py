"""Token ids are those of transformers, of 1,000 texts in several scripts, on vocabularies that its libraries made."""

import builtins
import json
import sys
from pathlib import Path
from typing import Any

import open_clip.tokenizer
import pytest

import vitkit
import wordy
from refusals import refused
from vitkit.language import MOST_CHARACTERS, canonical, read_tokenizer


@pytest.mark.parametrize("kind", ["CLIP's", "SigLIP's pieces", "SigLIP 2's"])
def test_ids_are_transformers(tmp_path: Path, kind: str) -> None:
    if kind == "SigLIP's pieces":
        theirs = wordy.siglip_tokenizer(tmp_path)
    else:
        theirs = wordy.clip_tokenizer() if kind == "CLIP's" else wordy.siglip2_tokenizer()
        theirs.save_pretrained(tmp_path)
    ours = read_tokenizer(tmp_path, wordy.CONTEXT, "none" if kind == "CLIP's" else "lower")
    assert ours(wordy.sentences()) == wordy.ids(theirs, wordy.sentences())


def test_a_text_that_is_too_long_is_refused(tmp_path: Path) -> None:
    wordy.clip_tokenizer().save_pretrained(tmp_path)
    own = read_tokenizer(tmp_path, wordy.CONTEXT, "none")
    assert len(own(["a " * (MOST_CHARACTERS // 2)])[0]) == wordy.CONTEXT
    with refused("language.text-too-long", "4,098"):
        own(["a " * (MOST_CHARACTERS // 2) + "ab"])


@pytest.mark.parametrize(("file", "library"), [("tokenizer.json", "tokenizers"), ("spiece.model", "sentencepiece")])
def test_what_is_no_tokenizer_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, library: str
) -> None:
    with refused("language.tokenizer-missing", str(tmp_path)):
        read_tokenizer(tmp_path, 8, "none")
    (tmp_path / file).write_text("{}")
    with refused("language.tokenizer-damaged", str(tmp_path)):
        read_tokenizer(tmp_path, 8, "none")
    real = builtins.__import__

    def refuse(name: str, *args: Any) -> Any:
        if name.partition(".")[0] == library:
            raise ModuleNotFoundError(f"No module named {name!r}", name=library)
        return real(name, *args)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with refused("language.library-missing", library, "vitkit[text]"):
        read_tokenizer(tmp_path, 8, "none")


def test_canonical_is_big_visions() -> None:
    assert canonical("  A Photo, of\n a (Dog)!  ") == "a photo of a dog"


@pytest.mark.parametrize(
    ("kind", "part"),
    [*(("CLIP", part) for part in ("post_processor", "normalizer", "pre_tokenizer")), ("SigLIP 2", "post_processor")],
)
def test_a_tokenizer_that_has_lost_a_part_is_refused(tmp_path: Path, kind: str, part: str) -> None:
    theirs = wordy.clip_tokenizer() if kind == "CLIP" else wordy.siglip2_tokenizer()
    theirs.save_pretrained(tmp_path)
    lose(tmp_path, part)
    with refused("language.tokenizer-unlike", "tokenizer.json"):
        read_tokenizer(tmp_path, wordy.CONTEXT, "none" if kind == "CLIP" else "lower")


def test_an_answer_by_such_a_tokenizer_is_refused(tmp_path: Path) -> None:
    wordy.clip(tmp_path / "clip")
    lose(tmp_path / "clip", "post_processor")
    with refused("language.tokenizer-unlike", "tokenizer.json"):
        vitkit.zero_shot(tmp_path / "clip", ["daisy", "rose"])


def lose(folder: Path, part: str) -> None:
    file = folder / "tokenizer.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), part: None}))


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


def test_another_tokenizer_than_it_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with refused("language.tokenizer-missing", "timm/ViT-B-16-SigLIP"):
        read_tokenizer(folder_of(tmp_path, hf_tokenizer_name="timm/ViT-B-16-SigLIP"), 77, "none")
    for odd in ({"clean": "odd"}, {"reduction_mask": "simple"}):
        with refused("language.config-unsupported", "tokenizer_kwargs"):
            read_tokenizer(folder_of(tmp_path, tokenizer_kwargs=odd), 77, "none")
    monkeypatch.setitem(sys.modules, "open_clip.tokenizer", None)
    with refused("language.library-missing", "open_clip_torch"):
        read_tokenizer(folder_of(tmp_path), 77, "none")
