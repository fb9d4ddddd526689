"""Hugging Face's DINOv3, BEiT and Data2VecVision: transformers' answers from folders and from bare files."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

import vitkit
import wordy
from refusals import refused
from tiny import largest_difference, randomise
from vitkit.errors import VitkitError
from vitkit.weights import inspect, resize_offsets
from weights.spoiling import Spoilt

SIDE = 32
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48, "patch_size": 8}
DINO: dict[str, dict[str, Any]] = {
    "DINOv3": {"num_register_tokens": 4},
    "DINOv3, gated, of other base": {
        "use_gated_mlp": True,
        "hidden_act": "silu",
        "num_register_tokens": 2,
        "rope_theta": 40.0,
        "key_bias": True,
        "layer_norm_eps": 1e-3,
    },
    "DINOv3 without registers": {"query_bias": False, "value_bias": False},
}
BEIT: dict[str, tuple[str, dict[str, Any]]] = {
    "BEiT": ("Beit", {"use_relative_position_bias": True, "use_mask_token": True}),
    "BEiT, its class token": ("Beit", {"use_shared_relative_position_bias": True, "use_mean_pooling": False}),
    "BEiT with positions": ("Beit", {"use_absolute_position_embeddings": True}),
    "Data2Vec": ("Data2VecVision", {"use_relative_position_bias": True, "hidden_act": "gelu_new"}),
}


def made(kind: str) -> Any:
    wordy.quiet()
    torch.manual_seed(0)
    if kind in DINO:
        config: Any = transformers.DINOv3ViTConfig(**SIZES, image_size=SIDE, **DINO[kind])
        return randomise(transformers.DINOv3ViTModel(config)).eval()
    name, fields = BEIT[kind]
    own = getattr(transformers, f"{name}Config")(**SIZES, image_size=SIDE, num_labels=5, **fields)
    return randomise(getattr(transformers, f"{name}ForImageClassification")(own)).eval()


def images(side: int = SIDE) -> Tensor:
    return torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(1))


def answers(model: Any, batch: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens, and logits or what stands for the image."""
    with torch.inference_mode():
        base = getattr(model, model.base_model_prefix) if hasattr(model, "classifier") else model
        found = base(batch)
        return found.last_hidden_state, model(batch).logits if hasattr(model, "classifier") else found.pooler_output


def assert_same(ours: Any, model: Any, side: int = SIDE) -> None:
    tokens, answer = answers(model, images(side))
    with torch.inference_mode():
        assert largest_difference(ours.forward_features(images(side)), tokens) <= 1e-5
        assert largest_difference(ours(images(side)), answer) <= 1e-5
    assert answer.std() > 0.01


@pytest.mark.parametrize("kind", [*DINO, *BEIT])
def test_answers_are_transformers(tmp_path: Path, kind: str) -> None:
    model = made(kind)
    model.save_pretrained(tmp_path / "folder")
    found = vitkit.load(tmp_path / "folder")
    assert_same(found.model, model)
    assert "Hugging Face" in found.report.format
    assert found.classes == tuple(f"LABEL_{i}" for i in range(5)) * (kind in BEIT)


@pytest.mark.parametrize("kind", ["DINOv3", "BEiT", "BEiT, its class token"])
def test_what_a_bare_file_does_not_tell_is_assumed_aloud(tmp_path: Path, kind: str) -> None:
    model = made(kind)
    model.save_pretrained(tmp_path)
    told = {"image_size": SIDE, "heads": 4} if kind in DINO else {}
    found = vitkit.load(tmp_path / "model.safetensors", **told)
    assert_same(found.model, model)
    assert found.report.assumed.keys() >= ({"rotary", "preprocess"} if kind in DINO else {"norm_eps", "preprocess"})


def test_rotary_positions_at_another_resolution(tmp_path: Path) -> None:
    model = made("DINOv3")
    model.save_pretrained(tmp_path)
    assert_same(vitkit.load(tmp_path, image_size=64).model, model, 64)


def test_tables_of_offsets_are_fitted_as_beits_authors_do_and_that_is_said(tmp_path: Path) -> None:
    made("BEiT").save_pretrained(tmp_path)
    found = vitkit.load(tmp_path, image_size=64)
    assert found.report.resized[0].convention == "BEiT"
    table = load_file(tmp_path / "model.safetensors")[found.report.renamed["rel_pos.0.table"]]
    assert torch.equal(found.model.state_dict()["rel_pos.0.table"], resize_offsets(table, (4, 4), (8, 8)))


def test_a_beit_that_predicts_tokens_is_an_encoder(tmp_path: Path) -> None:
    wordy.quiet()
    config = transformers.BeitConfig(**SIZES, image_size=SIDE, vocab_size=7, use_relative_position_bias=True)
    model = randomise(transformers.BeitForMaskedImageModeling(config)).eval()
    model.save_pretrained(tmp_path)
    found = vitkit.load(tmp_path)
    with torch.inference_mode():
        expected = model.layernorm(model.beit(images()).last_hidden_state)
        assert largest_difference(found.model.forward_features(images()), expected) <= 1e-5
    assert "lm_head.weight" in found.report.dropped


@pytest.mark.parametrize("kind", ["DINOv3, gated, of other base", "BEiT", "BEiT, its class token", "Data2Vec"])
def test_every_tensor_that_is_missing_or_misshapen_is_named(tmp_path: Path, kind: str) -> None:
    made(kind).save_pretrained(tmp_path)
    folder = Spoilt(tmp_path)
    for spoiled, tensor in folder.tensors.items():
        if any(part in spoiled for part in ("mask_token", "classifier.", ".1.")) or 0 in tensor.shape:
            continue  # not read, or of another layer than the first
        said = spoiled.removesuffix(".weight").removesuffix(".bias").replace("position_bias_table", "")
        with pytest.raises(VitkitError, match=said):
            folder.without(spoiled)
        with pytest.raises(VitkitError):
            folder.widened(spoiled)
    with pytest.raises(VitkitError, match="odd"):
        folder.plan({**folder.tensors, "odd": next(iter(folder.tensors.values()))})


def test_what_is_made_otherwise_is_refused_by_name(tmp_path: Path) -> None:
    made("BEiT").save_pretrained(tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    placed = {**state, "beit.embeddings.position_embeddings": torch.zeros(1, 17, 32)}
    save_file(placed, tmp_path / "model.safetensors")
    with refused("weights.description-unsupported", "use_absolute_position_embeddings"):
        inspect(tmp_path)
    save_file({**state, "decode_head.classifier.weight": torch.zeros(3)}, tmp_path / "model.safetensors")
    with refused("weights.architecture-unsupported"):
        inspect(tmp_path)
    made("DINOv3, gated, of other base").save_pretrained(tmp_path)
    gated = json.loads((tmp_path / "config.json").read_text()) | {"hidden_act": "gelu"}
    (tmp_path / "config.json").write_text(json.dumps(gated))
    with refused("weights.description-unsupported", "silu"):
        inspect(tmp_path)


@pytest.mark.parametrize("kind", ["DINOv3", "BEiT"])
def test_a_spoilt_description_is_refused(tmp_path: Path, kind: str) -> None:
    made(kind).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for name, value, code in (
        ("num_attention_heads", 0, "model.value-invalid"),
        ("image_size", [32], "weights.description-invalid"),
        ("layer_norm_eps", "x", "text.value-wrong"),
        ("model_type", ["beit"], "weights.file-damaged"),
    ):
        (tmp_path / "config.json").write_text(json.dumps({**config, name: value}))
        with refused(code):
            inspect(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({**config, "layer_norm_eps": None}))
    assert_same(vitkit.load(tmp_path).model, made(kind))


def test_a_spoilt_description_of_pixels_is_refused_or_left_out(tmp_path: Path) -> None:
    made("BEiT").save_pretrained(tmp_path)
    whole: dict[str, Any] = dict.fromkeys(("do_rescale", "do_normalize", "do_center_crop"), True)
    whole |= {name: {"height": SIDE, "width": SIDE} for name in ("size", "crop_size")}
    whole |= {"rescale_factor": 1 / 255, "resample": 3, **dict.fromkeys(("image_mean", "image_std"), [0.5] * 3)}
    count = 0
    for name in whole:
        for value in (None, "x", {}, -1, 1.5, {"shortest_edge": None}):
            (tmp_path / "preprocessor_config.json").write_text(json.dumps({**whole, name: value}))
            try:
                found = inspect(tmp_path).preprocess
            except VitkitError:
                count += 1
            else:
                stated = found.mean if name == "image_mean" else found.std
                usual = name not in ("image_mean", "image_std")
                assert usual or list(stated) == [0.5 if value is None else value] * 3
    assert count >= 25
