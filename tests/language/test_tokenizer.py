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
from vitkit.errors import VitkitError
from vitkit.language import MOST_CHARACTERS, canonical, read_tokenizer


def test_clips_tokenizer_json(tmp_path: Path) -> None:
    theirs = wordy.clip_tokenizer()
    theirs.save_pretrained(tmp_path)
    ours = read_tokenizer(tmp_path, wordy.CONTEXT, "none")
    assert ours(wordy.sentences()) == wordy.ids(theirs, wordy.sentences())


def test_siglips_pieces(tmp_path: Path) -> None:
    theirs = wordy.siglip_tokenizer(tmp_path)
    ours = read_tokenizer(tmp_path, wordy.CONTEXT, "lower")
    assert ours(wordy.sentences()) == wordy.ids(theirs, wordy.sentences())


def test_siglip_2s_tokenizer_json(tmp_path: Path) -> None:
    theirs = wordy.siglip2_tokenizer()
    theirs.save_pretrained(tmp_path)
    ours = read_tokenizer(tmp_path, wordy.CONTEXT, "lower")
    assert ours(wordy.sentences()) == wordy.ids(theirs, wordy.sentences())


def test_the_texts_try_what_they_should() -> None:
    texts = wordy.sentences()
    assert len(texts) == 1000
    lengths = [len(ids) for ids in map(wordy.clip_tokenizer().encode, texts)]
    assert min(lengths) == 2  # what begins and what ends it
    assert sum(length > wordy.CONTEXT for length in lengths) > 300
    assert sum(any(ord(letter) > 0x3000 for letter in text) for text in texts) > 300


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
    endless = {"type": "Replace", "pattern": {"Regex": "(z+)+#"}, "content": ""}
    steps = [stored["normalizer"], endless]
    file.write_text(json.dumps({**stored, "normalizer": {"type": "Sequence", "normalizers": steps}}))
    with pytest.raises(VitkitError, match=r"the tokenizer cannot be used: .*retry-limit"):
        read_tokenizer(tmp_path, wordy.CONTEXT, "none")(["z" * 40 + "!"])


def test_a_file_that_is_too_large_is_refused_unread(tmp_path: Path) -> None:
    for name in ("tokenizer.json", "spiece.model"):
        with (tmp_path / name).open("wb") as file:
            file.truncate(2**27 + 1)
        with pytest.raises(VitkitError, match=rf"{name} has 134,217,729 bytes, but a tokenizer at most 134,217,728"):
            read_tokenizer(tmp_path, 8, "none")


def test_what_is_not_there_or_damaged_is_said(tmp_path: Path) -> None:
    with pytest.raises(VitkitError, match="has no tokenizer"):
        read_tokenizer(tmp_path, 8, "none")
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(VitkitError, match="tokenizer is damaged"):
        read_tokenizer(tmp_path, 8, "none")
    (tmp_path / "spiece.model").write_bytes(b"nothing")
    with pytest.raises(VitkitError, match="tokenizer is damaged"):
        read_tokenizer(tmp_path, 8, "none")


@pytest.mark.parametrize(("file", "library"), [("tokenizer.json", "tokenizers"), ("spiece.model", "sentencepiece")])
def test_a_line_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, library: str) -> None:
    (tmp_path / file).write_text("{}")
    real = builtins.__import__

    def refuse(name: str, *args: Any) -> Any:
        if name.partition(".")[0] == library:
            raise ModuleNotFoundError(f"No module named {name!r}", name=library)
        return real(name, *args)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(VitkitError, match=rf"{library}: pip install 'vitkit\[text\]'"):
        read_tokenizer(tmp_path, 8, "none")


def test_canonical_is_big_visions() -> None:
    assert canonical("  A Photo, of\n a (Dog)!  ") == "a photo of a dog"


@pytest.mark.parametrize("part", ["post_processor", "normalizer", "pre_tokenizer"])
def test_a_tokenizer_of_clip_that_has_lost_a_part_is_refused(tmp_path: Path, part: str) -> None:
    wordy.clip_tokenizer().save_pretrained(tmp_path)
    lose(tmp_path, part)
    with pytest.raises(VitkitError, match=rf"tokenizer.json .*its {part}|{part} is missing"):
        read_tokenizer(tmp_path, wordy.CONTEXT, "none")


def test_a_tokenizer_of_siglip_2_whose_texts_do_not_end_is_refused(tmp_path: Path) -> None:
    wordy.siglip2_tokenizer().save_pretrained(tmp_path)
    lose(tmp_path, "post_processor")
    with pytest.raises(VitkitError, match="adds no <eos> to a text"):
        read_tokenizer(tmp_path, wordy.CONTEXT, "lower")


def test_an_answer_by_such_a_tokenizer_is_refused(tmp_path: Path) -> None:
    wordy.clip(tmp_path / "clip")
    lose(tmp_path / "clip", "post_processor")
    with pytest.raises(VitkitError, match="its post_processor is missing"):
        vitkit.zero_shot(tmp_path / "clip", ["daisy", "rose"])


def lose(folder: Path, part: str) -> None:
    file = folder / "tokenizer.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), part: None}))


# --- OpenCLIP's own tokenizer: token ids of open_clip on texts in several scripts ---------------------


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
