"""Convert texts to token ids, with the tokenizer files that are stored next to the weights.

Three libraries give the same ids as in transformers and open_clip: `tokenizer.json` is read with tokenizers, and
`spiece.model` with sentencepiece; the extra `text` installs both. Models with OpenCLIP's own tokenizer need the package
open_clip, which contains it.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from vitkit.errors import VitkitError, first_line
from vitkit.system.files import read_json

Clean = Literal["none", "lower", "canonical"]

_OPEN_CLIP_CONFIG = "open_clip_config.json"
MOST_CHARACTERS = 4096  # maximum length of a text
_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"  # what sentencepiece writes for a space
_BEGIN, _END = "<|startoftext|>", "<|endoftext|>"  # the tokens that begin and end a text of CLIP


@dataclass(frozen=True)
class Tokenizer:
    """A tokenizer that pads or truncates all texts to the context length of the text encoder."""

    encode: Callable[[str], list[int]]  # the ids of a text, including its start and end tokens, without padding
    end: int | None  # the id of the end token; None if `encode` adds none
    padding: int  # the id of the padding token
    context: int  # the number of ids per text
    is_padded_left: bool = False  # whether the padding comes before the text

    def __call__(self, texts: Sequence[str]) -> list[list[int]]:
        rows = []
        for text in texts:
            if len(text) > MOST_CHARACTERS:
                raise VitkitError(
                    "language.text-too-long",
                    f"a text of {len(text):,} characters is too long ({text[:40]!r} ...): at most {MOST_CHARACTERS:,} "
                    "are allowed",
                )
            ids = self.encode(text)
            if len(ids) > self.context:
                end = [] if self.end is None or ids[-1] != self.end else [self.end]
                ids = ids[: self.context - len(end)] + end
            padding = [self.padding] * (self.context - len(ids))
            rows.append(padding + ids if self.is_padded_left else ids + padding)
        return rows


def read_tokenizer(folder: Path, context: int, clean: Clean) -> Tokenizer:
    """Read the tokenizer that is stored next to the weights, for texts of `context` ids.

    `clean` is the normalisation of texts for `tokenizer.json`: `none` (CLIP), `lower` (SigLIP 2), or `canonical`.

    Raises:
        VitkitError: there is no tokenizer, it is damaged, or the library that reads it is not installed.
    """
    settings = read_json(folder / "tokenizer_config.json") if (folder / "tokenizer_config.json").is_file() else {}
    try:
        if (folder / "spiece.model").is_file():
            return _from_pieces(folder / "spiece.model", context)
        if (folder / "tokenizer.json").is_file():
            return _from_json(folder / "tokenizer.json", settings, context, clean)
        if (folder / _OPEN_CLIP_CONFIG).is_file():
            return _from_open_clip(folder, read_json(folder / _OPEN_CLIP_CONFIG), context)
    except ImportError as error:
        message = f"reading words needs the library {error.name}: pip install 'vitkit[text]'"
        raise VitkitError("language.library-missing", message) from error
    except VitkitError:
        raise
    except Exception as error:  # the libraries raise many types
        message = f"{folder}: its tokenizer is damaged: {first_line(error)}; download it again"
        raise VitkitError("language.tokenizer-damaged", message) from error
    message = f"{folder} has no tokenizer: expected tokenizer.json or spiece.model beside the weights, as published"
    raise VitkitError("language.tokenizer-missing", message)


def _from_json(path: Path, settings: dict[str, Any], context: int, clean: Clean) -> Tokenizer:
    from tokenizers import Tokenizer as Library

    tokenizer = Library.from_file(str(path))
    tokenizer.no_truncation()
    tokenizer.no_padding()

    def encode(text: str) -> list[int]:
        return list(tokenizer.encode(_CLEANERS[clean](text)).ids)

    # The tokenizer must add the start and end token, and split texts into words, as in the text encoder's training.
    tokens = tokenizer.encode("A  Photo").tokens
    if tokenizer.token_to_id(_BEGIN) is not None and tokenizer.token_to_id(_END) is not None:  # CLIP's
        words = [tokenizer.encode(word, add_special_tokens=False).tokens for word in ("a", "photo")]
        is_alike = tokens == [_BEGIN, *words[0], *words[1], _END]
    else:
        end_token = _token_name(settings.get("eos_token"), "<eos>")
        has_end = tokenizer.token_to_id(end_token) is not None and settings.get("add_eos_token") is not False
        is_alike = not has_end or tokens[-1] == end_token
    if not is_alike:
        raise VitkitError(
            "language.tokenizer-unlike",
            f"{path} reads texts in another way than the text encoder was trained: its normalizer, pre_tokenizer or "
            "post_processor is missing or a different one; use the publisher's file",
        )
    default_padding, default_end = (_END, _END) if clean == "none" else ("<pad>", "<eos>")
    padding = tokenizer.token_to_id(_token_name(settings.get("pad_token"), default_padding))
    return Tokenizer(
        encode,
        end=tokenizer.token_to_id(_token_name(settings.get("eos_token"), default_end)),
        padding=0 if padding is None else padding,
        context=context,
        is_padded_left=settings.get("padding_side") == "left",
    )


def _token_name(setting: Any, default: str) -> str:
    # In tokenizer_config.json, a token is a string or an object.
    name = setting.get("content") if isinstance(setting, dict) else setting
    return str(name) if name else default


def _from_pieces(path: Path, context: int) -> Tokenizer:
    from sentencepiece import SentencePieceProcessor

    processor = SentencePieceProcessor()
    processor.Load(str(path))
    prefix = "<unk>"  # so that sentencepiece does not strip the space before the first word
    length = len(processor.encode(prefix, out_type=str))
    end = processor.piece_to_id("</s>")

    def encode(text: str) -> list[int]:
        pieces = processor.encode(prefix + canonical(_SPACE + text.replace(_SPACE, " ")), out_type=str)
        pieces = pieces[length:] if len(pieces) >= length else pieces
        return [*(processor.piece_to_id(piece) for piece in pieces), end]

    return Tokenizer(encode, end, end, context)


def canonical(text: str) -> str:
    """Return a text in lower case, without punctuation and with single spaces, as in SigLIP's training (big_vision)."""
    bare = text.lower().translate(str.maketrans("", "", string.punctuation))
    return re.sub(r"\s+", " ", bare).strip()


_CLEANERS: dict[Clean, Callable[[str], str]] = {"none": str, "lower": str.lower, "canonical": canonical}


def _from_open_clip(folder: Path, config: Mapping[str, Any], context: int) -> Tokenizer:
    model = config.get("model_cfg")
    text_config = model.get("text_cfg") if isinstance(model, Mapping) else None
    fields = text_config if isinstance(text_config, Mapping) else {}
    name = fields.get("hf_tokenizer_name")
    if name:
        raise VitkitError(
            "language.tokenizer-missing",
            f"{folder} has no tokenizer: put the tokenizer.json of {name} beside {_OPEN_CLIP_CONFIG}, which names it",
        )
    settings = dict(fields.get("tokenizer_kwargs") or {})
    kind = settings.pop("clean", "lower")
    unsupported = list(settings)
    if kind not in ("lower", "whitespace", "canonicalize"):
        unsupported.append(f"clean {kind!r}")
    if unsupported:
        setting = unsupported[0]
        message = f"{_OPEN_CLIP_CONFIG}: tokenizer_kwargs {setting} is not supported; put the tokenizer.json beside it"
        raise VitkitError("language.config-unsupported", message)
    try:
        from open_clip.tokenizer import SimpleTokenizer
    except ImportError as error:
        raise VitkitError(
            "language.library-missing",
            f"{folder} has OpenCLIP's own tokenizer, which needs the library open_clip: pip install open_clip_torch",
        ) from error
    library = SimpleTokenizer(clean=kind)
    begin, end = library.sot_token_id, library.eot_token_id
    return Tokenizer(lambda text: [begin, *library.encode(text), end], end, 0, context)
