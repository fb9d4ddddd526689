"""From texts to the numbers of their tokens, by the vocabulary that lies beside the weights.

`tokenizer.json` (or CLIP's `vocab.json` and `merges.txt`) is read by the library tokenizers, `spiece.model` by
sentencepiece, each as transformers does, and OpenCLIP's merges as open_clip does: extra `text`.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from vitkit.errors import VitkitError, first_line
from vitkit.language.open_clip_tokenizer import DESCRIPTION, MERGES, find_merges, read_merges
from vitkit.language.tokenizer_limits import check_pieces, check_steps, check_text
from vitkit.system.files import from_json

Clean = Literal["none", "lower", "canonical"]
EXTRA = "pip install 'vitkit[text]'"
_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"  # what sentencepiece writes for a space
# How CLIP cuts a text into words (arXiv 2103.00020, sec. 2.4), and what begins and ends it.
_WORDS = r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
_BEGIN, _END = "<|startoftext|>", "<|endoftext|>"


@dataclass(frozen=True)
class Tokenizer:
    """Texts to ids, each as long as the text encoder reads.

    Attributes:
        encode: a text -> its ids, with those that begin and end it, however long.
        end: the id that ends a text; None where `encode` adds none.
        padding: the id that fills up what is short.
        context: how many ids a text has.
        is_padded_left: whether it is filled up ahead of the text.
    """

    encode: Callable[[str], list[int]]
    end: int | None
    padding: int
    context: int
    is_padded_left: bool = False

    def __call__(self, texts: Sequence[str]) -> list[list[int]]:
        return [self._fit(self._ids(text)) for text in texts]

    def _ids(self, text: str) -> list[int]:
        check_text(text)
        with _panics_told():
            return self.encode(text)

    def _fit(self, ids: list[int]) -> list[int]:
        if len(ids) > self.context:
            ids = [*ids[: self.context - 1], self.end] if ids[-1] == self.end is not None else ids[: self.context]
        filling = [self.padding] * (self.context - len(ids))
        return filling + ids if self.is_padded_left else ids + filling


def read_tokenizer(folder: Path, context: int, clean: Clean) -> Tokenizer:
    """The tokenizer that lies beside weights.

    Args:
        folder: that holds it.
        context: how many ids a text has.
        clean: what happens to texts ahead of `tokenizer.json`: nothing (CLIP), lower case (SigLIP 2), or `canonical`.

    Raises:
        VitkitError: there is none, it is damaged, or the library that reads it is not installed.
    """
    settings = _json(folder / "tokenizer_config.json") if (folder / "tokenizer_config.json").is_file() else {}
    try:
        with _panics_told():
            return _read(folder, settings, context, clean)
    except ImportError as error:
        raise VitkitError(f"reading words needs the library {error.name}: {EXTRA}") from error
    except VitkitError:
        raise
    except Exception as error:  # the libraries raise what they like
        raise VitkitError(f"{folder}: its tokenizer is damaged: {first_line(error)}") from error


def _read(folder: Path, settings: dict[str, Any], context: int, clean: Clean) -> Tokenizer:
    if (folder / "spiece.model").is_file():
        return _of_pieces(folder / "spiece.model", context)
    if (folder / "tokenizer.json").is_file():
        return _of_json(folder / "tokenizer.json", settings, context, clean)
    if (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file():
        return _of_merges(folder, context)
    described = _json(folder / DESCRIPTION) if (folder / DESCRIPTION).is_file() else None
    if (merges := find_merges(folder, described)) is not None:
        encode, end = read_merges(merges, described)
        return Tokenizer(encode, end, 0, context)
    raise VitkitError(
        f"{folder} has no tokenizer: expected tokenizer.json, spiece.model, or vocab.json and merges.txt beside the "
        f"weights, as their publisher has them; of OpenCLIP's own files {MERGES} will do"
    )


@contextmanager
def _panics_told() -> Iterator[None]:
    """What the library tokenizers gives up in a way that no other error is.

    Raises:
        VitkitError: it does, as where a regular expression takes too long.
    """
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise VitkitError(f"the tokenizer cannot be used: {first_line(error)}") from error


def _json(path: Path) -> dict[str, Any]:
    try:
        found = from_json(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise VitkitError(f"{path} is damaged: {error}") from error
    if not isinstance(found, dict):
        raise VitkitError(f"{path} is damaged: it holds no JSON object")
    return found


def _of_json(path: Path, settings: dict[str, Any], context: int, clean: Clean) -> Tokenizer:
    from tokenizers import Tokenizer as Library

    check_steps(path)
    own = Library.from_file(str(path))
    own.no_truncation()
    own.no_padding()

    def encode(text: str) -> list[int]:
        return list(own.encode(_CLEANED[clean](text)).ids)

    _check_whole(path, own, settings)
    padding = own.token_to_id(_named(settings.get("pad_token"), _END if clean == "none" else "<pad>"))
    end = own.token_to_id(_named(settings.get("eos_token"), _END if clean == "none" else "<eos>"))
    is_left = settings.get("padding_side") == "left"
    return Tokenizer(encode, end, 0 if padding is None else padding, context, is_left)


def _check_whole(path: Path, own: Any, settings: dict[str, Any]) -> None:
    """Refuse a tokenizer.json that has lost a part: it would give other tokens than the text encoder has learned.

    Raises:
        VitkitError: texts lack what begins or ends them, or, of CLIP, words are not cut as CLIP cuts them.
    """
    is_clip = own.token_to_id(_BEGIN) is not None and own.token_to_id(_END) is not None
    begin = _BEGIN if is_clip else None
    end = _END if is_clip else _named(settings.get("eos_token"), "<eos>")
    tokens = own.encode("a photo").tokens
    lost = [token for token, place in ((begin, 0), (end, -1)) if token is not None and tokens[place] != token]
    if not is_clip and (own.token_to_id(end) is None or settings.get("add_eos_token") is False):
        lost = []
    if lost:
        raise VitkitError(
            f"{path} puts no {' and no '.join(lost)} around a text, as the text encoder has learned it: its "
            "post_processor is missing or another one; take the file as its publisher has it"
        )
    if not is_clip:
        return
    words = [own.encode(word).tokens[1:-1] for word in ("a", "photo")]
    if own.encode("A  Photo").tokens != [_BEGIN, *words[0], *words[1], _END]:
        raise VitkitError(
            f"{path} does not cut texts into words in small letters, as CLIP does: its normalizer or pre_tokenizer is "
            "missing or another one; take the file as its publisher has it"
        )


def _named(written: Any, usual: str) -> str:
    """A token as tokenizer_config.json has it: its text, or an object with that."""
    found = written.get("content") if isinstance(written, dict) else written
    return str(found) if found else usual


def _of_merges(folder: Path, context: int) -> Tokenizer:
    """CLIP's files from before tokenizer.json."""
    from tokenizers import Regex, normalizers, pre_tokenizers, processors
    from tokenizers import Tokenizer as Library
    from tokenizers.models import BPE

    names = str(folder / "vocab.json"), str(folder / "merges.txt")
    own = Library(BPE.from_file(*names, end_of_word_suffix="</w>", continuing_subword_prefix="", unk_token=_END))
    own.normalizer = normalizers.Sequence(
        [normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()]
    )
    words = pre_tokenizers.Split(Regex(_WORDS), behavior="removed", invert=True)
    own.pre_tokenizer = pre_tokenizers.Sequence([words, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    begin, end = own.token_to_id(_BEGIN), own.token_to_id(_END)
    if begin is None or end is None:
        raise VitkitError(f"{folder / 'vocab.json'} has no {_BEGIN} or no {_END}: it is not CLIP's")
    own.post_processor = processors.RobertaProcessing((_END, end), (_BEGIN, begin), False, False)  # noqa: FBT003
    own.add_special_tokens([_BEGIN, _END])
    return Tokenizer(lambda text: list(own.encode(text).ids), end, end, context)


def _of_pieces(path: Path, context: int) -> Tokenizer:
    """SigLIP's."""
    from sentencepiece import SentencePieceProcessor

    check_pieces(path)
    own = SentencePieceProcessor()
    own.Load(str(path))
    ahead = "<unk>"  # so that sentencepiece does not strip the space ahead of the first word
    length = len(own.encode(ahead, out_type=str))
    end = own.piece_to_id("</s>")

    def encode(text: str) -> list[int]:
        pieces = own.encode(ahead + canonical(_SPACE + text.replace(_SPACE, " ")), out_type=str)
        pieces = pieces[length:] if len(pieces) >= length else pieces
        return [*(own.piece_to_id(piece) for piece in pieces), end]

    return Tokenizer(encode, end, end, context)


def canonical(text: str) -> str:
    """In lower case, without punctuation, with single spaces: as SigLIP's texts were in training (big_vision)."""
    bare = text.lower().translate(str.maketrans("", "", string.punctuation))
    return re.sub(r"\s+", " ", bare).strip()


_CLEANED: dict[Clean, Callable[[str], str]] = {"none": str, "lower": str.lower, "canonical": canonical}
