"""Convert texts to token ids, with the tokenizer files that are stored next to the weights.

Three kinds of files give the same ids as in transformers and open_clip:

- `tokenizer.json`, or CLIP's `vocab.json` and `merges.txt`, read with the library tokenizers
- `spiece.model`, read with the library sentencepiece
- OpenAI's merges `bpe_simple_vocab_16e6.txt.gz` (CLIP, arXiv 2103.00020, sec. 2.4), which OpenCLIP uses, next to the
  weights or in the installed package open_clip

The extra `text` installs the libraries.

Tokenizer files are not trusted. The steps of a `tokenizer.json` can enlarge a text without limit: if each of forty
steps triples the text, the result does not fit into any memory. Therefore the growth factors of all steps are
multiplied before a file is used. Files with unknown steps, or with a growth beyond that of all published tokenizers,
are refused.
"""

from __future__ import annotations

import base64
import gzip
import html
import math
import re
import string
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from vitkit.errors import VitkitError, first_line
from vitkit.system.files import from_json, read_json
from vitkit.system.protobuf import fields_of

Clean = Literal["none", "lower", "canonical"]

MERGES = "bpe_simple_vocab_16e6.txt.gz"
_OPEN_CLIP_CONFIG = "open_clip_config.json"

MOST_CHARACTERS = 4096  # maximum length of a text
_MOST_GROWTH = 256  # maximum number of characters made of one; published: up to 48 (CLIP) and 72 (T5)
_MOST_ADDED = 1000  # maximum number of tokens around a text
_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"  # what sentencepiece writes for a space
# How CLIP splits a text into words (arXiv 2103.00020, sec. 2.4), and the tokens that begin and end it.
_WORDS = r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
_BEGIN, _END = "<|startoftext|>", "<|endoftext|>"
_OPEN_CLIP_BEGIN, _OPEN_CLIP_END = "<start_of_text>", "<end_of_text>"
_MOST_UNPACKED = 2**24  # maximum number of characters of the merges, five times that of OpenAI's file
_OPEN_CLIP_TOKENS = 49_408  # 256 bytes within and 256 at the end of a word, the merges, and the two tokens above
_OPEN_CLIP_WORDS = (
    rf"(?i:{_OPEN_CLIP_BEGIN}|{_OPEN_CLIP_END}|'s|'t|'re|'ve|'m|'ll|'d|[\p{{L}}]+|[\p{{N}}]|[^\s\p{{L}}\p{{N}}]+)"
)

# The largest number of characters that a step makes of one. Unicode's longest decompositions have 18 characters
# (compatibility, U+FDFA) and 4 (canonical).
_NORMALIZERS = {
    "NFC": 3,
    "NFD": 4,
    "NFKC": 18,
    "NFKD": 18,
    "Lowercase": 3,
    "Strip": 1,
    "StripAccents": 1,
    "Nmt": 1,
    "BertNormalizer": 12,  # adds spaces around a Chinese character, or separates accents and makes letters lower-case
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
_CHARSMAP = 2  # number of the field precompiled_charsmap in sentencepiece's NormalizerSpec
_NORMALIZER_SPEC = 3  # number of the field normalizer_spec in sentencepiece's ModelProto


@dataclass(frozen=True)
class Tokenizer:
    """A tokenizer that pads or truncates all texts to the context length of the text encoder.

    Attributes:
        encode: a function that returns the ids of a text, including its start and end tokens, without padding.
        end: the id of the end token; None if `encode` adds none.
        padding: the id of the padding token.
        context: the number of ids per text.
        is_padded_left: whether the padding comes before the text.
    """

    encode: Callable[[str], list[int]]
    end: int | None
    padding: int
    context: int
    is_padded_left: bool = False

    def __call__(self, texts: Sequence[str]) -> list[list[int]]:
        return [self._fit(self._ids(text)) for text in texts]

    def _ids(self, text: str) -> list[int]:
        _check_text(text)
        with _panics_as_errors():
            return self.encode(text)

    def _fit(self, ids: list[int]) -> list[int]:
        if len(ids) > self.context:
            ids = [*ids[: self.context - 1], self.end] if ids[-1] == self.end is not None else ids[: self.context]
        filling = [self.padding] * (self.context - len(ids))
        return filling + ids if self.is_padded_left else ids + filling


def read_tokenizer(folder: Path, context: int, clean: Clean) -> Tokenizer:
    """Read the tokenizer that is stored next to the weights.

    Args:
        folder: the folder of the weights.
        context: the number of ids per text.
        clean: the normalisation of texts for `tokenizer.json`: `none` (CLIP), `lower` (SigLIP 2), or `canonical`.

    Raises:
        VitkitError: there is no tokenizer, it is damaged, or the library that reads it is not installed.
    """
    settings = read_json(folder / "tokenizer_config.json") if (folder / "tokenizer_config.json").is_file() else {}
    try:
        with _panics_as_errors():
            return _read(folder, settings, context, clean)
    except ImportError as error:
        raise VitkitError(f"reading words needs the library {error.name}: pip install 'vitkit[text]'") from error
    except VitkitError:
        raise
    except Exception as error:  # the libraries raise many types
        raise VitkitError(f"{folder}: its tokenizer is damaged: {first_line(error)}; download it again") from error


def _read(folder: Path, settings: dict[str, Any], context: int, clean: Clean) -> Tokenizer:
    if (folder / "spiece.model").is_file():
        return _of_pieces(folder / "spiece.model", context)
    if (folder / "tokenizer.json").is_file():
        return _of_json(folder / "tokenizer.json", settings, context, clean)
    if (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file():
        return _of_merges(folder, context)
    described = read_json(folder / _OPEN_CLIP_CONFIG) if (folder / _OPEN_CLIP_CONFIG).is_file() else None
    if (merges := _find_merges(folder, described)) is not None:
        encode, end = _read_merges(merges, described)
        return Tokenizer(encode, end, 0, context)
    raise VitkitError(
        f"{folder} has no tokenizer: expected tokenizer.json, spiece.model, or vocab.json and merges.txt beside the "
        f"weights, as published; for OpenCLIP's own layout, {MERGES} is enough"
    )


@contextmanager
def _panics_as_errors() -> Iterator[None]:
    """Convert panics of the library tokenizers, which do not derive from Exception, to `VitkitError`.

    Raises:
        VitkitError: the library panicked, for example because a regular expression takes too long.
    """
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise VitkitError(f"the tokenizer cannot be used: {first_line(error)}") from error


def _of_json(path: Path, settings: dict[str, Any], context: int, clean: Clean) -> Tokenizer:
    from tokenizers import Tokenizer as Library

    check_steps(path)
    tokenizer = Library.from_file(str(path))
    tokenizer.no_truncation()
    tokenizer.no_padding()

    def encode(text: str) -> list[int]:
        return list(tokenizer.encode(_CLEANED[clean](text)).ids)

    _check_whole(path, tokenizer, settings)
    padding = tokenizer.token_to_id(_named(settings.get("pad_token"), _END if clean == "none" else "<pad>"))
    end = tokenizer.token_to_id(_named(settings.get("eos_token"), _END if clean == "none" else "<eos>"))
    is_left = settings.get("padding_side") == "left"
    return Tokenizer(encode, end, 0 if padding is None else padding, context, is_left)


def _check_whole(path: Path, tokenizer: Any, settings: dict[str, Any]) -> None:
    """Check that a tokenizer.json produces tokens as in the training of the text encoder.

    Raises:
        VitkitError: the start or end token is not added to texts, or texts are not split into words as CLIP does.
    """
    is_clip = tokenizer.token_to_id(_BEGIN) is not None and tokenizer.token_to_id(_END) is not None
    begin = _BEGIN if is_clip else None
    end = _END if is_clip else _named(settings.get("eos_token"), "<eos>")
    tokens = tokenizer.encode("a photo").tokens
    lost = [token for token, place in ((begin, 0), (end, -1)) if token is not None and tokens[place] != token]
    if not is_clip and (tokenizer.token_to_id(end) is None or settings.get("add_eos_token") is False):
        lost = []
    if lost:
        raise VitkitError(
            f"{path} adds no {' and no '.join(lost)} to a text, unlike in the training of the text encoder: its "
            "post_processor is missing or a different one; use the publisher's file"
        )
    if not is_clip:
        return
    words = [tokenizer.encode(word).tokens[1:-1] for word in ("a", "photo")]
    if tokenizer.encode("A  Photo").tokens != [_BEGIN, *words[0], *words[1], _END]:
        raise VitkitError(
            f"{path} does not split texts into lower-case words, as CLIP does: its normalizer or pre_tokenizer is "
            "missing or a different one; use the publisher's file"
        )


def _named(written: Any, usual: str) -> str:
    """Return a token's text from tokenizer_config.json, where it is a string or an object; `usual` if it is not set."""
    name = written.get("content") if isinstance(written, dict) else written
    return str(name) if name else usual


def _of_merges(folder: Path, context: int) -> Tokenizer:
    """Read CLIP's older tokenizer files, `vocab.json` and `merges.txt`."""
    from tokenizers import Regex, normalizers, pre_tokenizers, processors
    from tokenizers import Tokenizer as Library
    from tokenizers.models import BPE

    names = str(folder / "vocab.json"), str(folder / "merges.txt")
    tokenizer = Library(BPE.from_file(*names, end_of_word_suffix="</w>", continuing_subword_prefix="", unk_token=_END))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()]
    )
    words = pre_tokenizers.Split(Regex(_WORDS), behavior="removed", invert=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    begin, end = tokenizer.token_to_id(_BEGIN), tokenizer.token_to_id(_END)
    if begin is None or end is None:
        raise VitkitError(
            f"{folder / 'vocab.json'} has no {_BEGIN} or no {_END}, unlike CLIP's: use the publisher's file"
        )
    tokenizer.post_processor = processors.RobertaProcessing((_END, end), (_BEGIN, begin), False, False)  # noqa: FBT003
    tokenizer.add_special_tokens([_BEGIN, _END])
    return Tokenizer(lambda text: list(tokenizer.encode(text).ids), end, end, context)


def _of_pieces(path: Path, context: int) -> Tokenizer:
    """Read SigLIP's vocabulary, `spiece.model`."""
    from sentencepiece import SentencePieceProcessor

    check_pieces(path)
    processor = SentencePieceProcessor()
    processor.Load(str(path))
    ahead = "<unk>"  # so that sentencepiece does not strip the space before the first word
    length = len(processor.encode(ahead, out_type=str))
    end = processor.piece_to_id("</s>")

    def encode(text: str) -> list[int]:
        pieces = processor.encode(ahead + canonical(_SPACE + text.replace(_SPACE, " ")), out_type=str)
        pieces = pieces[length:] if len(pieces) >= length else pieces
        return [*(processor.piece_to_id(piece) for piece in pieces), end]

    return Tokenizer(encode, end, end, context)


def canonical(text: str) -> str:
    """Return a text in lower case, without punctuation and with single spaces, as in SigLIP's training (big_vision)."""
    bare = text.lower().translate(str.maketrans("", "", string.punctuation))
    return re.sub(r"\s+", " ", bare).strip()


_CLEANED: dict[Clean, Callable[[str], str]] = {"none": str, "lower": str.lower, "canonical": canonical}


def _find_merges(folder: Path, config: Mapping[str, Any] | None) -> Path | None:
    """Find OpenCLIP's merges for the weights in a folder; None if the file does not exist.

    Args:
        folder: the folder of the weights.
        config: the content of open_clip_config.json; None if the folder does not contain this file.

    Raises:
        VitkitError: the configuration names another tokenizer, whose files are missing.
    """
    beside = folder / MERGES
    if config is None:
        return beside if beside.is_file() else None
    named = _of_texts(config).get("hf_tokenizer_name")
    if named:
        raise VitkitError(
            f"{folder} has no tokenizer: put the tokenizer.json of {named} beside {_OPEN_CLIP_CONFIG}, which names it"
        )
    if beside.is_file():
        return beside
    library = find_spec("open_clip")  # locates the package without importing it
    places = [] if library is None else library.submodule_search_locations or []
    return next((Path(place, MERGES) for place in places if Path(place, MERGES).is_file()), None)


def _read_merges(path: Path, config: Mapping[str, Any] | None) -> tuple[Callable[[str], list[int]], int]:
    """Read OpenCLIP's merges, and return a function that encodes a text, and the id of the end token.

    The encoded text includes the start and end tokens.

    Raises:
        VitkitError: the configuration requires a normalisation that is not supported, or the file is damaged.
        ImportError: the library tokenizers is not installed.
    """
    from tokenizers import Regex, pre_tokenizers
    from tokenizers import Tokenizer as Library
    from tokenizers.models import BPE

    with gzip.open(path, "rt", encoding="utf-8") as text:
        content = text.read(_MOST_UNPACKED + 1)
    if len(content) > _MOST_UNPACKED:
        raise VitkitError(
            f"{path} is damaged: it unpacks to more than {_MOST_UNPACKED:,} characters, and OpenAI's file to "
            "3,130,099; download it again"
        )
    lines = content.split("\n")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet(), key=lambda letter: (ord(letter) > 255, ord(letter)))
    names = [*alphabet, *(f"{letter}</w>" for letter in alphabet)]
    pairs = [line.split() for line in lines[1 : _OPEN_CLIP_TOKENS - len(names) - 1]]
    merges = [(first, second) for first, second in pairs]
    vocabulary = {name: i for i, name in enumerate([*names, *map("".join, merges), _OPEN_CLIP_BEGIN, _OPEN_CLIP_END])}
    if len(vocabulary) != _OPEN_CLIP_TOKENS:
        raise VitkitError(
            f"{path} is damaged: it has {len(vocabulary):,} tokens, but OpenAI's tokenizer has "
            f"{_OPEN_CLIP_TOKENS:,}; download it again"
        )
    tokenizer = Library(BPE(vocab=vocabulary, merges=merges, end_of_word_suffix="</w>"))
    words = pre_tokenizers.Split(Regex(_OPEN_CLIP_WORDS), behavior="removed", invert=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.add_special_tokens([_OPEN_CLIP_BEGIN, _OPEN_CLIP_END])
    begin, end, clean = vocabulary[_OPEN_CLIP_BEGIN], vocabulary[_OPEN_CLIP_END], _clean_of(config)
    return lambda text: [begin, *tokenizer.encode(clean(text)).ids, end], end


def _of_texts(config: Mapping[str, Any]) -> Mapping[str, Any]:
    model = config.get("model_cfg")
    described = model.get("text_cfg") if isinstance(model, Mapping) else None
    return described if isinstance(described, Mapping) else {}


def _clean_of(config: Mapping[str, Any] | None) -> Callable[[str], str]:
    settings = dict(_of_texts(config or {}).get("tokenizer_kwargs") or {})
    kind = settings.pop("clean", "lower")
    if settings or kind not in _OPEN_CLIP_CLEANED:
        said = next(iter(settings), f"clean {kind!r}")
        raise VitkitError(
            f"{_OPEN_CLIP_CONFIG}: tokenizer_kwargs {said} is not supported; put the tokenizer.json beside it"
        )
    return _OPEN_CLIP_CLEANED[kind]


def _plain(text: str) -> str:
    """Repair wrongly decoded characters and HTML entities of a text, and collapse white space."""
    if not (text.isascii() and text.isprintable() and "&" not in text):
        try:
            import ftfy
        except ImportError as error:
            raise VitkitError(
                f"reading {text!r:.60} as OpenCLIP does requires the library ftfy: pip install 'vitkit[text]'"
            ) from error
        text = html.unescape(html.unescape(ftfy.fix_text(text)))
    return " ".join(text.split())


def _canonical(text: str) -> str:
    bare = _plain(text).replace("_", " ").translate(str.maketrans("", "", string.punctuation))
    return " ".join(bare.lower().split())


_OPEN_CLIP_CLEANED: dict[str, Callable[[str], str]] = {
    "lower": lambda text: _plain(text).lower(),
    "whitespace": _plain,
    "canonicalize": _canonical,
}


def _check_text(text: str) -> None:
    """Refuse a text that is far longer than any text encoder reads.

    Raises:
        VitkitError: the text has more than `MOST_CHARACTERS` characters.
    """
    if len(text) > MOST_CHARACTERS:
        raise VitkitError(
            f"a text of {len(text):,} characters is too long ({text[:40]!r} ...): at most {MOST_CHARACTERS:,} are "
            "allowed"
        )


def check_steps(path: Path) -> None:
    """Refuse a `tokenizer.json` that would enlarge texts more than any published tokenizer.

    Raises:
        VitkitError: the file would enlarge texts too much, is damaged, or has an unknown step.
    """
    try:
        stored = from_json(path.read_bytes())
        growth = _normalizing(stored.get("normalizer")) * _cutting(stored.get("pre_tokenizer"))
        added = _adding(stored.get("post_processor"))
        longest = max((len(token["content"]) for token in stored.get("added_tokens") or ()), default=0)
    except VitkitError as error:
        raise VitkitError(f"{path}: {error}") from error
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise VitkitError(f"{path}: its tokenizer is damaged: {error!r:.200}; download it again") from error
    if growth > _MOST_GROWTH:
        raise VitkitError(
            f"{path}: its normalizer and pre_tokenizer would turn one character into up to {growth:,.0f}, but at most "
            f"{_MOST_GROWTH} are allowed: use the publisher's file"
        )
    if longest > MOST_CHARACTERS:  # the library normalises these tokens when it reads the file
        raise VitkitError(
            f"{path}: one of its added_tokens has {longest:,} characters, but at most {MOST_CHARACTERS:,} are allowed: "
            "use the publisher's file"
        )
    if added > _MOST_ADDED:
        raise VitkitError(
            f"{path}: its post_processor would add {added:,} tokens to each text, but at most {_MOST_ADDED:,} are "
            "allowed: use the publisher's file"
        )


def check_pieces(path: Path) -> None:
    """Refuse a `spiece.model` that would enlarge texts more than any published tokenizer.

    Raises:
        VitkitError: the file would enlarge texts too much, or is damaged.
    """
    try:
        charsmaps = [
            bytes(charsmap)
            for spec in _fields(memoryview(path.read_bytes()), _NORMALIZER_SPEC)
            for charsmap in _fields(spec, _CHARSMAP)
        ]
        growth = max(map(_longest_replacement, charsmaps), default=1)
    except ValueError as error:
        raise VitkitError(f"{path}: its tokenizer is damaged: {error}; download it again") from error
    if growth > _MOST_GROWTH:
        raise VitkitError(
            f"{path}: its normalizer would turn one character into up to {growth:,}, but at most {_MOST_GROWTH} are "
            "allowed: use the publisher's file"
        )


def _normalizing(step: Any) -> float:
    """Return the largest number of characters that a normaliser makes from one character."""
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
    """Return the largest factor by which a replacement lengthens a text.

    A regular expression may match the empty string. The content is then inserted next to every character.
    """
    if literal := pattern.get("String"):
        return max(1.0, len(content) / len(literal))
    return 1 + len(content)


def _cutting(step: Any) -> float:
    """Return the largest number of characters that a pre-tokenizer makes from one character."""
    if step is None:
        return 1
    if step["type"] == "Sequence":
        return math.prod(map(_cutting, step["pretokenizers"]), start=1.0)
    return _known(_PRE_TOKENIZERS, step["type"], "pre_tokenizer")


def _adding(step: Any) -> int:
    """Return the number of tokens that a post-processor adds to a text.

    Raises:
        VitkitError: the post-processor does not insert the text exactly once.
    """
    if step is None:
        return 0
    if step["type"] == "Sequence":
        return sum(map(_adding, step["processors"]))
    if step["type"] != "TemplateProcessing":
        return _known(_PROCESSORS, step["type"], "post_processor")
    if sum("Sequence" in piece for piece in step["single"]) != 1:
        raise VitkitError("its post_processor must insert the text exactly once")
    tokens = step["special_tokens"]
    if isinstance(tokens, list):  # in older files
        tokens = {token["id"]: token for token in tokens}
    named = [piece["SpecialToken"]["id"] for piece in step["single"] if "SpecialToken" in piece]
    return sum(len(tokens[name]["ids"]) for name in named)


def _known(most: Mapping[str, int], kind: str, where: str) -> int:
    if kind not in most:
        raise VitkitError(f"its {where} {kind!r:.80} is not known; use the publisher's file")
    return most[kind]


def _longest_replacement(charsmap: bytes) -> int:
    """Return the length of the longest replacement in sentencepiece's precompiled map of characters.

    The map consists of the size of a tree, the tree, and the replacements.

    Raises:
        ValueError: the map is damaged.
    """
    if not charsmap:
        return 1
    size = int.from_bytes(charsmap[:4], "little")
    if len(charsmap) < 4 or size > len(charsmap) - 4:
        raise ValueError("precompiled_charsmap is cut short")
    return max(len(text.decode("utf-8", "replace")) for text in charsmap[4 + size :].split(b"\0")) or 1


def _fields(message: memoryview, wanted: int) -> Iterator[memoryview]:
    """Yield the content of each field with the number `wanted` in a protocol buffer; numeric fields are skipped."""
    return (value for number, value in fields_of(message) if number == wanted and value is not None)
