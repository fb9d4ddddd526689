"""Classes by name: transformers' and OpenCLIP's vectors and logits, and a classifier like any other."""

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import open_clip.tokenizer
import pytest
import timm
import torch
from open_clip.model import CLIP, CLIPTextCfg, CLIPVisionCfg
from open_clip.transformer import LayerNorm, TextTransformer
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import vitkit
import wordy
from photos import noise, save
from refusals import refused
from tiny import largest_difference, randomise
from vitkit.language import (
    IMAGENET_TEMPLATES,
    MOST_CHARACTERS,
    TEMPLATES,
    canonical,
    read_images_and_words,
    read_text_encoder,
    read_tokenizer,
)
from vitkit.language.zero_shot import zero_shot
from vitkit.weights import read_checkpoint

CLASSES = ("daisy", "rose", "red tulip")
BATCH = torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(1))
KINDS = {
    "CLIP": wordy.clip,
    "CLIP largest": lambda folder: wordy.clip(folder, eos_token_id=2),
    "SigLIP": wordy.siglip,
    "SigLIP 2": lambda folder: wordy.siglip(folder, second=True),
}


def template_of(kind: str) -> str:
    """The published one, but where the stand-in vocabulary has more tokens of it than a text has."""
    return "{}" if kind == "SigLIP 2" else TEMPLATES["siglip" if "Sig" in kind else "clip"]


def prompts(kind: str) -> list[str]:
    return [template_of(kind).format(name) for name in CLASSES]


def tokens_of(tokenizer: Any, texts: list[str]) -> Tensor:
    return torch.tensor(wordy.ids(tokenizer, texts))


@pytest.mark.parametrize("kind", KINDS)
def test_vectors_and_logits_are_transformers(tmp_path: Path, kind: str) -> None:
    model, tokenizer = KINDS[kind](tmp_path)
    ours = read_images_and_words(tmp_path)
    classifier = ours.classifier(CLASSES, [template_of(kind)], one=True)
    with torch.inference_mode():
        theirs = model(input_ids=tokens_of(tokenizer, prompts(kind)), pixel_values=BATCH)
        assert largest_difference(ours.vectors(prompts(kind)), theirs.text_embeds) <= 1e-5
        assert largest_difference(ours.images.model(BATCH), theirs.image_embeds) <= 1e-5
        assert largest_difference(classifier.model(BATCH), theirs.logits_per_image) <= 1e-5
        assert largest_difference(classifier.probabilities(BATCH), theirs.logits_per_image.softmax(-1)) <= 1e-6
        if "Sig" in kind:
            as_trained = ours.classifier(CLASSES, [template_of(kind)]).probabilities(BATCH)
            assert largest_difference(as_trained, theirs.logits_per_image.sigmoid()) <= 1e-6
    assert theirs.logits_per_image.std() > 0.01


def test_templates_are_averaged_as_clips_authors_do(tmp_path: Path) -> None:
    model, tokenizer = wordy.clip(tmp_path)
    ours = read_images_and_words(tmp_path)
    with torch.inference_mode():
        rows = []
        for name in CLASSES:
            tokens = tokens_of(tokenizer, [template.format(name) for template in IMAGENET_TEMPLATES])
            vectors = model.get_text_features(tokens)
            vectors = getattr(vectors, "pooler_output", vectors)
            mean = (vectors / vectors.norm(dim=-1, keepdim=True)).mean(dim=0)
            rows.append(mean / mean.norm())
    assert largest_difference(ours.class_vectors(CLASSES, IMAGENET_TEMPLATES), torch.stack(rows)) <= 1e-6


def open_clip_folder(folder: Path, *, quick: bool) -> Any:
    torch.manual_seed(0)
    vocabulary, _ = wordy.clip_vocabulary()
    vision = {"layers": 2, "width": 32, "head_width": 16, "patch_size": 4, "image_size": 16}
    text = {"context_length": wordy.CONTEXT, "vocab_size": len(vocabulary), "width": 32, "heads": 4, "layers": 3}
    model = CLIP(24, CLIPVisionCfg(**vision), CLIPTextCfg(**text), quick_gelu=quick)
    randomise(model)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(model.state_dict(), folder / "open_clip_model.safetensors")
    written = {"embed_dim": 24, "quick_gelu": quick, "vision_cfg": vision, "text_cfg": text}
    (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": written}))
    wordy.clip_tokenizer().save_pretrained(folder)
    return model.eval()


@pytest.mark.parametrize("quick", [False, True])
def test_open_clips_vectors_and_logits(tmp_path: Path, quick: bool) -> None:
    model = open_clip_folder(tmp_path, quick=quick)
    ours = read_images_and_words(tmp_path)
    tokens = tokens_of(wordy.clip_tokenizer(), prompts("CLIP"))
    with torch.inference_mode():
        images, texts, scale = model(BATCH, tokens)
        assert largest_difference(ours.vectors(prompts("CLIP")), texts) <= 1e-5
        logits = ours.classifier(CLASSES).model(BATCH)
        assert largest_difference(logits, scale * images @ texts.T) <= 1e-5


def test_open_clips_siglip_has_timms_trunk_and_reads_the_last_token(tmp_path: Path) -> None:
    torch.manual_seed(0)
    name, sizes = "vit_base_patch32_siglip_256", {"img_size": 16, "patch_size": 4, "embed_dim": 32, "depth": 1}
    trunk = timm.create_model(name, num_classes=0, num_heads=4, **sizes).eval()
    tokenizer = wordy.siglip2_tokenizer()
    own = {"context_length": wordy.CONTEXT, "vocab_size": len(tokenizer), "width": 32, "heads": 4, "layers": 2}
    own |= {"no_causal_mask": True, "pool_type": "last", "proj_bias": True}
    act, norm = partial(nn.GELU, approximate="tanh"), partial(LayerNorm, eps=1e-6)
    text = TextTransformer(**own, output_dim=32, act_layer=act, norm_layer=norm).eval()
    randomise(trunk)
    randomise(text)
    state = {f"visual.trunk.{key}": value for key, value in trunk.state_dict().items()}
    state |= {f"text.{key}": value for key, value in text.state_dict().items()}
    state |= {"logit_scale": torch.tensor(1.5), "logit_bias": torch.tensor(-3.0)}
    save_file(state, tmp_path / "open_clip_model.safetensors")
    said = {**own, "act_kwargs": {"approximate": "tanh"}, "norm_kwargs": {"eps": 1e-6}}
    written = {"embed_dim": 32, "vision_cfg": {"timm_model_name": name, "image_size": 16}, "text_cfg": said}
    (tmp_path / "open_clip_config.json").write_text(json.dumps({"model_cfg": written}))
    tokenizer.save_pretrained(tmp_path)
    ours = read_images_and_words(tmp_path, heads=4)
    assert (ours.images.preprocess.fit, ours.images.preprocess.mean) == ("squash", (0.5, 0.5, 0.5))
    with torch.inference_mode():
        texts = nn.functional.normalize(text(tokens_of(tokenizer, prompts("SigLIP 2"))), dim=-1)
        images = nn.functional.normalize(trunk(BATCH), dim=-1)
        assert largest_difference(ours.vectors(prompts("SigLIP 2")), texts) <= 1e-5
        logits = ours.classifier(CLASSES, ["{}"]).model(BATCH)
        assert largest_difference(logits, torch.tensor(1.5).exp() * images @ texts.T - 3) <= 1e-5


@pytest.mark.parametrize("kind", ["CLIP", "SigLIP"])
def test_every_tensor_of_words_that_is_missing_or_misshapen_is_named(tmp_path: Path, kind: str) -> None:
    KINDS[kind](tmp_path)
    file = tmp_path / "model.safetensors"
    state = load_file(file)
    layer, others = "text_model.encoder.layers.1.", "text_model.encoder.layers."  # of which all are read alike
    for spoiled in [name for name in state if name.startswith(layer if others in name else "text_")]:
        tokens = "token_embedding" in spoiled
        save_file({name: own for name, own in state.items() if name != spoiled}, file)
        with refused("language.encoder-missing" if tokens else "language.tensors-unlike", "" if tokens else spoiled):
            read_text_encoder(read_checkpoint(tmp_path), "erf")
        save_file({**state, spoiled: torch.cat([state[spoiled]] * 2, dim=-1)}, file)
        with refused("language.tensors-unlike", "" if tokens else spoiled.rpartition(".")[0]):
            read_text_encoder(read_checkpoint(tmp_path), "erf")
    spoiled = "text_model.final_layer_norm.bias"
    save_file({**state, spoiled: state[spoiled] * torch.nan}, file)
    with refused("language.tensor-invalid", spoiled):
        read_images_and_words(tmp_path)
    save_file({**state, "text_model.odd": torch.zeros(3)}, file)
    with refused("language.tensors-unlike", "text_model.odd"):
        read_images_and_words(tmp_path)


def test_it_is_a_classifier_like_any_other(tmp_path: Path) -> None:
    """Saved, loaded, evaluated, and computed by another runtime."""
    wordy.clip(tmp_path / "clip")
    classifier = zero_shot(tmp_path / "clip", CLASSES)
    classifier.save(tmp_path / "saved")
    again = vitkit.load(tmp_path / "saved")
    assert again.classes == CLASSES
    assert torch.equal(again.model(BATCH), classifier.model(BATCH))
    for name in CLASSES:
        for i in range(2):
            save(noise(16, 16, i), tmp_path / "data" / name / f"{i}.png")
    assert vitkit.evaluate(again, tmp_path / "data").to_dict()
    found, expected = classifier.use("openvino", "float32").logits(BATCH), classifier.logits(BATCH)
    assert (found - expected).abs().max() <= 1e-4 * expected.abs().max()


LONG = "a photo of the small red and blue and green tulip, " * 4 + "{}"


@pytest.mark.parametrize(
    ("kind", "classes", "options", "code"),
    [
        ("CLIP", ["", " "], {}, "language.classes-empty"),
        ("CLIP", ["a", "b", "a"], {}, "language.classes-alike"),
        ("CLIP", ["a"], {"templates": ("a photo",)}, "language.template-invalid"),
        ("CLIP", ["a"], {"one": False}, "language.sigmoid-untrained"),
        # The same tokens: one of them would get all the images of both.
        ("CLIP", ["daisy", "Rose", "rose"], {}, "language.classes-alike"),
        ("SigLIP", ["C++", "C"], {}, "language.classes-alike"),
        ("SigLIP", ["daisy", "rose"], {"templates": [LONG]}, "language.classes-alike"),
    ],
)
def test_what_cannot_be_asked_is_refused(
    tmp_path: Path, kind: str, classes: list[str], options: dict[str, Any], code: str
) -> None:
    KINDS[kind](tmp_path)
    with refused(code):
        zero_shot(tmp_path, classes, **options)


@pytest.mark.parametrize(("hidden_size", "heads"), [(64, 1), (1152, 16)])
def test_the_heads_of_a_bare_files_text_encoder_are_assumed_aloud(tmp_path: Path, hidden_size: int, heads: int) -> None:
    """1152 features are So400m's, whose heads have 72."""
    sizes = {"hidden_size": hidden_size, "num_attention_heads": heads, "intermediate_size": 48, "num_hidden_layers": 1}
    model, tokenizer = wordy.clip(tmp_path, **sizes, eos_token_id=2)
    (tmp_path / "config.json").unlink()
    ours = read_images_and_words(tmp_path, heads=2)
    assert ours.images.report.assumed["heads of the text encoder"].startswith(f"{heads}, as is usual")
    with torch.inference_mode():
        theirs = model.get_text_features(tokens_of(tokenizer, prompts("CLIP"))).pooler_output
        assert largest_difference(ours.vectors(prompts("CLIP")), nn.functional.normalize(theirs, dim=-1)) <= 1e-5


def test_words_of_another_model_or_none_are_refused(tmp_path: Path) -> None:
    model, _ = wordy.clip(tmp_path / "whole")
    model.vision_model.save_pretrained(tmp_path / "half")
    with refused("language.encoder-missing"):
        zero_shot(tmp_path / "half", CLASSES)
    wordy.siglip(tmp_path)
    (tmp_path / "spiece.model").unlink()
    wordy.siglip2_tokenizer().save_pretrained(tmp_path)
    with refused("language.tokenizer-unlike"):
        zero_shot(tmp_path, ["z🙂é"])
    wordy.clip(tmp_path / "clip", eos_token_id=5)
    with refused("language.tokenizer-unlike"):
        zero_shot(tmp_path / "clip", CLASSES)


def test_numbers_that_make_no_logits_are_refused(tmp_path: Path) -> None:
    wordy.siglip(tmp_path)
    whole = load_file(tmp_path / "model.safetensors")
    for name, number in (("bias", float("nan")), ("scale", 200.0), ("scale", [])):
        save_file(whole | {f"logit_{name}": torch.tensor(number)}, tmp_path / "model.safetensors")
        with refused("language.tensor-invalid", f"logit_{name}"):
            zero_shot(tmp_path, CLASSES)
    del whole["logit_bias"]  # a SigLIP without its bias would be asked as CLIP is
    save_file(whole, tmp_path / "model.safetensors")
    with refused("language.tensors-unlike", "logit_bias"):
        zero_shot(tmp_path, CLASSES)


@pytest.mark.parametrize(
    ("written", "code"),
    [
        (5, "language.config-invalid"),
        ({"num_attention_heads": 0}, "language.config-unsupported"),
        ({"eos_token_id": None}, "language.config-invalid"),
    ],
)
def test_a_spoilt_description_of_the_text_encoder_is_refused(tmp_path: Path, written: Any, code: str) -> None:
    wordy.clip(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["text_config"] = config["text_config"] | written if isinstance(written, dict) else written
    (tmp_path / "config.json").write_text(json.dumps(config))
    with refused(code):
        zero_shot(tmp_path, CLASSES)


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
    monkeypatch.setitem(sys.modules, library, None)
    with refused("language.library-missing", library, "vitkit[text]"):
        read_tokenizer(tmp_path, 8, "none")


def test_canonical_is_big_visions() -> None:
    assert canonical("  A Photo, of\n a (Dog)!  ") == "a photo of a dog"


@pytest.mark.parametrize(
    ("kind", "part"),
    [("CLIP", "post_processor"), ("CLIP", "normalizer"), ("SigLIP 2", "post_processor")],
)
def test_a_tokenizer_that_has_lost_a_part_is_refused(tmp_path: Path, kind: str, part: str) -> None:
    theirs = wordy.clip_tokenizer() if kind == "CLIP" else wordy.siglip2_tokenizer()
    theirs.save_pretrained(tmp_path)
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), part: None}))
    with refused("language.tokenizer-unlike", "tokenizer.json"):
        read_tokenizer(tmp_path, wordy.CONTEXT, "none" if kind == "CLIP" else "lower")


ODD = ["A &amp;lt; B", "“curly” ﬁne ﬀ ＦＵＬＬ", "x\u0000y", "<end_of_text> a", "I'LL we'Ve", "под_чёрк"]  # noqa: RUF001


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
    texts = [*wordy.sentences(500), *ODD]
    assert ours(texts) == theirs(texts).tolist()


def test_another_tokenizer_than_it_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with refused("language.tokenizer-missing", "timm/ViT-B-16-SigLIP"):
        read_tokenizer(folder_of(tmp_path, hf_tokenizer_name="timm/ViT-B-16-SigLIP"), 77, "none")
    for odd in ({"clean": "odd"}, {"reduction_mask": "simple"}):
        with refused("language.config-unsupported", "tokenizer_kwargs"):
            read_tokenizer(folder_of(tmp_path, tokenizer_kwargs=odd), 77, "none")
    monkeypatch.setitem(sys.modules, "open_clip.tokenizer", None)
    with refused("language.library-missing", "open_clip_torch"):
        read_tokenizer(folder_of(tmp_path), 77, "none")
