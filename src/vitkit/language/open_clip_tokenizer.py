"""OpenCLIP's own tokenizer, for folders without a tokenizer.json: merges in bpe_simple_vocab_16e6.txt.gz.

That file is OpenAI's (CLIP, arXiv 2103.00020, sec. 2.4): it lies beside the weights, or where open_clip is installed.
"""

from __future__ import annotations

import gzip
import html
import string
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from vitkit.errors import VitkitError

MERGES = "bpe_simple_vocab_16e6.txt.gz"
DESCRIPTION = "open_clip_config.json"
BEGIN, END = "<start_of_text>", "<end_of_text>"
_LONGEST = 2**24  # characters of the file, five times those of OpenAI's
_SIZE = 49_408  # tokens: of 256 bytes, alone and at the end of a word, of merges, and the two above
_WORDS = rf"(?i:{BEGIN}|{END}|'s|'t|'re|'ve|'m|'ll|'d|[\p{{L}}]+|[\p{{N}}]|[^\s\p{{L}}\p{{N}}]+)"


def find_merges(folder: Path, config: Mapping[str, Any] | None) -> Path | None:
    """The file of merges that belongs to weights in a folder; None where it is nowhere.

    Args:
        folder: of the weights.
        config: the content of its open_clip_config.json; None where there is none.

    Raises:
        VitkitError: the weights want a tokenizer that is not there.
    """
    own = folder / MERGES
    if config is None:
        return own if own.is_file() else None
    named = _of_texts(config).get("hf_tokenizer_name")
    if named:
        raise VitkitError(
            f"{folder} has no tokenizer: {DESCRIPTION} names {named}, whose tokenizer.json goes beside it"
        )
    if own.is_file():
        return own
    library = find_spec("open_clip")  # looked for, not run
    places = [] if library is None else library.submodule_search_locations or []
    return next((Path(place, MERGES) for place in places if Path(place, MERGES).is_file()), None)


def read_merges(path: Path, config: Mapping[str, Any] | None) -> tuple[Callable[[str], list[int]], int]:
    """What encodes a text, between the tokens that begin and end it, and the id of the one that ends it.

    Raises:
        VitkitError: texts are to be made ready in a way that is not known here, or merges are missing.
        ImportError: the library tokenizers is not installed.
    """
    from tokenizers import Regex, pre_tokenizers
    from tokenizers import Tokenizer as Library
    from tokenizers.models import BPE

    with gzip.open(path, "rt", encoding="utf-8") as text:
        content = text.read(_LONGEST + 1)
    if len(content) > _LONGEST:
        raise VitkitError(
            f"{path} is damaged: it unpacks to more than {_LONGEST:,} characters, and OpenAI's to 3,130,099"
        )
    lines = content.split("\n")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet(), key=lambda letter: (ord(letter) > 255, ord(letter)))
    names = [*alphabet, *(f"{letter}</w>" for letter in alphabet)]
    pairs = [line.split() for line in lines[1 : _SIZE - len(names) - 1]]
    merges = [(first, second) for first, second in pairs]
    vocabulary = {name: i for i, name in enumerate([*names, *map("".join, merges), BEGIN, END])}
    if len(vocabulary) != _SIZE:
        raise VitkitError(f"{path} is damaged: it makes {len(vocabulary):,} tokens, and OpenAI's {_SIZE:,}")
    own = Library(BPE(vocab=vocabulary, merges=merges, end_of_word_suffix="</w>"))
    words = pre_tokenizers.Split(Regex(_WORDS), behavior="removed", invert=True)
    own.pre_tokenizer = pre_tokenizers.Sequence(
        [words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    own.add_special_tokens([BEGIN, END])
    begin, end, clean = vocabulary[BEGIN], vocabulary[END], _clean_of(config)
    return lambda text: [begin, *own.encode(clean(text)).ids, end], end


def _of_texts(config: Mapping[str, Any]) -> Mapping[str, Any]:
    model = config.get("model_cfg")
    found = model.get("text_cfg") if isinstance(model, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _clean_of(config: Mapping[str, Any] | None) -> Callable[[str], str]:
    asked = dict(_of_texts(config or {}).get("tokenizer_kwargs") or {})
    kind = asked.pop("clean", "lower")
    if asked or kind not in _CLEANED:
        said = next(iter(asked), f"clean {kind!r}")
        raise VitkitError(f"{DESCRIPTION}: tokenizer_kwargs {said} is not supported; put the tokenizer.json beside it")
    return _CLEANED[kind]


def _plain(text: str) -> str:
    """With its characters repaired, and single spaces."""
    if not (text.isascii() and text.isprintable() and "&" not in text):
        try:
            import ftfy
        except ImportError as error:
            raise VitkitError(f"OpenCLIP reads {text!r:.60} by the library ftfy: pip install 'vitkit[text]'") from error
        text = html.unescape(html.unescape(ftfy.fix_text(text)))
    return " ".join(text.split())


def _canonical(text: str) -> str:
    bare = _plain(text).replace("_", " ").translate(str.maketrans("", "", string.punctuation))
    return " ".join(bare.lower().split())


_CLEANED: dict[str, Callable[[str], str]] = {
    "lower": lambda text: _plain(text).lower(),
    "whitespace": _plain,
    "canonicalize": _canonical,
}
