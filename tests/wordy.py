"""Whole models of images and words, tiny and random, with stand-in vocabularies made by the reference libraries."""

import functools
import io
import json
import random
from pathlib import Path
from typing import Any

import sentencepiece
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from tiny import randomise

_TEXT = """a photo of the small daisy rose tulip dog beach on in and red blue green running über Straße naïve café
    кошка собака на пляже фото маленькая μια γάτα στην παραλία 猫 犬 海滩 上 的 照片 ねこ いぬ うみ 고양이 강아지 바다
    قطة كلب على الشاطئ हाथी कुत्ता समुद्र don't I'll it's x1 42 2024 3.14 #tag @home"""
WORDS = _TEXT.split()
MARKS = ["", "", "", ",", ".", "!", "?", " - ", "…", "\n", "\t ", "  ", "🙂", "é", "'s", "(", ")"]
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
CONTEXT = 12


def sentences(number: int = 1000) -> list[str]:
    """In several scripts, with signs, odd spaces, capitals and lengths from nothing to too long."""
    draw = random.Random(0)

    def word() -> str:
        found = draw.choice(WORDS)
        return draw.choice([found, found, found.upper(), found.capitalize()]) + draw.choice(MARKS)

    return ["", " ", "a", *(" ".join(word() for _ in range(draw.randint(1, 24))) for _ in range(number - 3))]


def quiet() -> None:
    transformers.logging.disable_progress_bar()
    transformers.logging.set_verbosity_error()


@functools.cache
def clip_vocabulary() -> tuple[dict[str, int], list[tuple[str, str]]]:
    own = Tokenizer(models.BPE(end_of_word_suffix="</w>", unk_token="<|endoftext|>"))
    own.normalizer = normalizers.Lowercase()
    own.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    train = trainers.BpeTrainer(
        vocab_size=700, initial_alphabet=alphabet, end_of_word_suffix="</w>", show_progress=False
    )
    own.train_from_iterator(sentences(300), train)
    found = json.loads(own.to_str())["model"]
    known: dict[str, int] = found["vocab"]
    names = sorted({*known, *(f"{letter}</w>" for letter in alphabet)}, key=lambda name: known.get(name, 10**6))
    vocabulary = {name: i for i, name in enumerate([*names, "<|startoftext|>", "<|endoftext|>"])}
    return vocabulary, [tuple(pair) for pair in found["merges"]]


def clip_tokenizer(**fields: Any) -> Any:
    vocabulary, merges = clip_vocabulary()
    return transformers.CLIPTokenizer(vocab=dict(vocabulary), merges=list(merges), model_max_length=CONTEXT, **fields)


@functools.cache
def pieces() -> bytes:
    """A spiece.model."""
    file = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(s for s in sentences(300) if s.strip()),
        model_writer=file,
        vocab_size=260,
        character_coverage=1.0,
        hard_vocab_limit=False,
        unk_id=2,
        bos_id=-1,
        eos_id=1,
        pad_id=0,
        minloglevel=2,
    )
    return file.getvalue()


def siglip_tokenizer(folder: Path) -> Any:
    (folder / "spiece.model").write_bytes(pieces())
    return transformers.SiglipTokenizer(str(folder / "spiece.model"), model_max_length=CONTEXT)


@functools.cache
def gemma_vocabulary() -> tuple[dict[str, int], list[tuple[str, str]]]:
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]
    bytes_ = [f"<0x{i:02X}>" for i in range(256)]
    own = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
    own.normalizer = normalizers.Sequence([normalizers.Lowercase(), normalizers.Replace(" ", "▁")])
    train = trainers.BpeTrainer(vocab_size=700, special_tokens=[*special, *bytes_], show_progress=False)
    own.train_from_iterator(sentences(300), train)
    found = json.loads(own.to_str())["model"]
    return found["vocab"], [tuple(pair) for pair in found["merges"]]


def siglip2_tokenizer() -> Any:
    vocabulary, merges = gemma_vocabulary()
    own = transformers.Siglip2Tokenizer(
        vocab=dict(vocabulary), merges=list(merges), model_max_length=CONTEXT, padding_side="right"
    )
    own.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="$A <eos>", special_tokens=[("<eos>", vocabulary["<eos>"])]
    )
    own.backend_tokenizer.decoder = decoders.Fuse()
    return own


def clip(folder: Path, **texts: Any) -> Any:
    """A CLIPModel and its tokenizer in a folder as on the hub."""
    quiet()
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    vocabulary, _ = clip_vocabulary()
    ids = {"vocab_size": len(vocabulary), "eos_token_id": vocabulary["<|endoftext|>"], "bos_token_id": 0}
    text = {**SIZES, "num_hidden_layers": 3, "max_position_embeddings": CONTEXT, **ids, "pad_token_id": 1, **texts}
    config = transformers.CLIPConfig(
        text_config=text, vision_config={**SIZES, "image_size": 16, "patch_size": 4}, projection_dim=24
    )
    return _saved(transformers.CLIPModel(config), clip_tokenizer(), folder)


def siglip(folder: Path, *, second: bool = False) -> Any:
    """A SiglipModel with its own tokenizer, or that of SigLIP 2."""
    quiet()
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    tokenizer = siglip2_tokenizer() if second else siglip_tokenizer(folder)
    ids = {"vocab_size": len(tokenizer), "eos_token_id": 1, "bos_token_id": 2, "pad_token_id": 0}
    text = {**SIZES, "max_position_embeddings": CONTEXT, **ids}
    config = transformers.SiglipConfig(text_config=text, vision_config={**SIZES, "image_size": 16, "patch_size": 4})
    return _saved(transformers.SiglipModel(config), tokenizer, folder)


def _saved(model: Any, tokenizer: Any, folder: Path) -> Any:
    randomise(model)
    with torch.no_grad():
        model.logit_scale.fill_(1.5)
    model.eval().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model, tokenizer


def ids(tokenizer: Any, texts: list[str]) -> list[list[int]]:
    """As the reference has them."""
    found: list[list[int]] = tokenizer(texts, padding="max_length", max_length=CONTEXT, truncation=True)["input_ids"]
    return found
