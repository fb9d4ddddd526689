"""transformers' models and every setting of config.json and image processors: transformers' answers, or a refusal."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor

import vitkit
import wordy
from refusals import refused
from tiny import largest_difference, randomise
from vitkit.errors import VitkitError
from vitkit.weights import inspect, resize_offsets
from vitkit.weights.formats import huggingface_described as described
from weights.spoiling import Spoilt

SIDE = 32
SIZES: dict[str, Any] = {
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "image_size": 32,
    "patch_size": 8,
    "num_labels": 4,
}


def saved(folder: Path, kind: str = "ViT", **settings: Any) -> Any:
    torch.manual_seed(1)
    config = getattr(transformers, f"{kind}Config")(**{**SIZES, **settings})
    model = getattr(transformers, f"{kind}ForImageClassification")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    return model


def rewritten(file: Path, **fields: Any) -> None:
    written = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps({**written, **fields}))


def picture(width: int = 61, height: int = 47) -> Image.Image:
    levels = np.random.default_rng(0).integers(0, 256, (6, 8, 3), np.uint8)
    return Image.fromarray(levels).resize((width, height), Image.Resampling.BICUBIC)


DINOV2 = {"layerscale_value": 0.3, "use_mask_token": False, "mlp_ratio": 2}
SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "hidden_act gelu_new, layer_norm_eps": ("ViT", {"hidden_act": "gelu_new", "layer_norm_eps": 0.1}),
    "hidden_act quick_gelu, pooler_act": ("ViT", {"hidden_act": "quick_gelu", "pooler_act": "relu"}),
    "hidden_act relu, size": ("ViT", {"hidden_act": "relu", "image_size": [32, 48], "num_channels": 1}),
    "hidden_act silu, qkv_bias": (
        "Dinov2",
        {"hidden_act": "silu", "qkv_bias": False, **DINOV2},
    ),
    "dropout": ("DeiT", {"attention_probs_dropout_prob": 0.4, "hidden_dropout_prob": 0.3}),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_gives_the_logits_of_transformers(name: str, tmp_path: Path) -> None:
    kind, settings = SETTINGS[name]
    theirs = saved(tmp_path / "model", kind, **settings)
    ours = vitkit.load(tmp_path / "model").model
    images = torch.rand(2, ours.config.in_channels, *ours.config.image_size)
    with torch.no_grad():
        assert torch.allclose(ours(images), theirs(images).logits, atol=2e-5)
    vitkit.convert(tmp_path / "model", tmp_path / "again", to="hf")  # reads it back
    again = getattr(transformers, f"{kind}ForImageClassification").from_pretrained(tmp_path / "again").eval()
    with torch.no_grad():
        assert torch.allclose(again(images).logits, theirs(images).logits, atol=2e-5)
    assert vitkit.load(tmp_path / "again").preprocess.size == ours.config.image_size


def test_heads_that_are_not_stated_are_the_default_of_transformers(tmp_path: Path) -> None:
    theirs = saved(tmp_path, num_attention_heads=12)
    written = json.loads((tmp_path / "config.json").read_text())
    del written["num_attention_heads"]
    (tmp_path / "config.json").write_text(json.dumps(written))
    images = torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        assert torch.allclose(vitkit.load(tmp_path).model(images), theirs(images).logits, atol=2e-5)


UNSUPPORTED, INVALID = "weights.description-unsupported", "weights.description-invalid"


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"hidden_act": "mish"}, UNSUPPORTED),
        ({"problem_type": "ranking"}, INVALID),
        ({"id2label": {"0": "a", "1": "b"}}, "weights.classes-mismatched"),
        ({"id2label": ["a", "b", "c", "d"]}, INVALID),
        ({"apply_layernorm": False}, UNSUPPORTED),
        ({"pruned_heads": {"0": [1]}}, UNSUPPORTED),
        ({"quantization_config": {"bits": 4}}, UNSUPPORTED),
    ],
)
def test_a_setting_that_is_not_supported_is_refused(tmp_path: Path, fields: dict[str, Any], code: str) -> None:
    saved(tmp_path)
    rewritten(tmp_path / "config.json", **fields)
    with refused(code):
        vitkit.load(tmp_path)


def test_label2id_names_the_classes_if_id2label_does_not_and_a_field_that_is_not_known_is_named(tmp_path: Path) -> None:
    saved(tmp_path)
    labels = {"id2label": None, "label2id": {"d": 3, "b": 1, "a": 0, "c": 2}}
    rewritten(tmp_path / "config.json", **labels, window_layers=[3], nothing=None)
    rewritten(tmp_path / "preprocessor_config.json", image_processor_type="ViTImageProcessor", gamma=2)
    found = vitkit.load(tmp_path)
    notes = "\n".join(found.report.notes)
    assert "window_layers" in notes and "gamma" in notes and "nothing" not in notes
    assert found.classes == ("a", "b", "c", "d")


KINDS = "ViT DeiT Dinov2 Dinov2WithRegisters ViTMAE ViTMSN IJepa Beit Data2VecVision DINOv3ViT CLIPVision SiglipVision"


def test_the_tables_have_every_field_of_transformers() -> None:
    for kind in (*KINDS.split(), "CLIP"):
        fields = getattr(transformers, f"{kind}Config")().to_dict()
        assert not fields.keys() - described.KNOWN - described.ONLY.keys(), kind
    for kind in described.PROCESSORS:
        fields = getattr(transformers, f"{kind}ImageProcessor")().to_dict()
        assert not fields.keys() - described.KNOWN_PIXELS - described.ONLY_PIXELS.keys(), kind


@pytest.mark.parametrize(("outputs", "problem"), [(4, "multi_label_classification"), (1, None)])
def test_a_sigmoid_is_a_sigmoid(tmp_path: Path, outputs: int, problem: str | None) -> None:
    saved(tmp_path / "model", num_labels=outputs, problem_type=problem)
    processor = transformers.ViTImageProcessor(size={"height": 32, "width": 32})
    processor.save_pretrained(tmp_path / "model")
    theirs = transformers.pipeline("image-classification", model=str(tmp_path / "model"), top_k=outputs)(picture())
    picture().save(tmp_path / "x.png")
    vitkit.convert(tmp_path / "model", tmp_path / "ours")
    vitkit.convert(tmp_path / "ours", tmp_path / "theirs", to="hf")
    for folder in ("model", "ours", "theirs"):
        classifier = vitkit.load(tmp_path / folder)
        (found,) = classifier.predict([tmp_path / "x.png"])
        for row in theirs:
            assert dict(found.ranking)[row["label"]] == pytest.approx(row["score"], abs=2e-3)
        named = {row["label"] for row in theirs if row["score"] >= 0.5}
        assert set(filter(None, found.label.split(";"))) == named
    assert any("sigmoid" in note for note in vitkit.load(tmp_path / "model").report.notes)


def test_one_output_of_any_layout_is_a_sigmoid(tmp_path: Path) -> None:
    model = vitkit.VisionTransformer(img_size=16, patch_size=8, embed_dim=32, depth=1, num_heads=2, num_classes=1)
    torch.save(model.state_dict(), tmp_path / "one.pth")
    images = torch.rand(2, 3, 16, 16)
    with torch.no_grad():
        probabilities = vitkit.load(tmp_path / "one.pth", heads=2).probabilities(images)
        assert torch.allclose(probabilities, model.eval()(images).sigmoid(), atol=1e-6)


def test_a_head_that_predicts_numbers_may_be_left_out(tmp_path: Path) -> None:
    saved(tmp_path, num_labels=1, problem_type="regression")
    with refused("weights.head-unsupported", "num_classes=0"):
        vitkit.load(tmp_path)
    assert vitkit.load(tmp_path, num_classes=0).model.head is None
    assert vitkit.load(tmp_path, num_classes=3).thresholds is None


def test_a_folder_is_kept_if_what_was_written_cannot_be_read_back(tmp_path: Path, monkeypatch: Any) -> None:
    saved(tmp_path / "model")
    vitkit.convert(tmp_path / "model", tmp_path / "out", to="hf")
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    real = described.processor
    monkeypatch.setattr(described, "processor", lambda preprocess: {**real(preprocess), "resample": 9})
    for name in ("out", "new"):
        with refused(UNSUPPORTED, "nothing was written"):
            vitkit.convert(tmp_path / "model", tmp_path / name, to="hf", force=True)
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before
    assert {path.name for path in tmp_path.iterdir()} == {"model", "out"}


PIXELS: dict[str, tuple[str, dict[str, Any]]] = {
    **{f"defaults of {kind}": (kind, {}) for kind in ("ViT", "DeiT", "Beit", "Siglip")},
    "a number is the short side": ("CLIP", {"size": 40, "crop_size": 32}),
    "shortest_edge": ("CLIP", {"size": {"shortest_edge": 40}, "crop_size": 32}),
    "do_center_crop": ("DeiT", {"size": 40, "crop_size": {"height": 32, "width": 32}, "do_center_crop": True}),
    "no center crop": ("DeiT", {"size": 32, "do_center_crop": False}),
    "resample, no do_normalize": ("ViT", {"size": {"height": 32, "width": 32}, "resample": 0, "do_normalize": False}),
    "one mean for all channels": ("ViT", {"size": 32, "image_mean": 0.3, "image_std": 0.2}),
}


def pixels_of(folder: Path, kind: str) -> tuple[np.ndarray, np.ndarray, Any]:
    """The pixels of transformers, those of vitkit, and the classifier."""
    theirs = getattr(transformers, f"{kind}ImageProcessorPil").from_pretrained(folder)
    wanted = theirs(picture(), return_tensors="np")["pixel_values"][0]
    classifier = vitkit.load(folder)
    return wanted, classifier.preprocess(picture()), classifier


@pytest.mark.parametrize("name", PIXELS)
def test_a_processor_makes_the_pixels_of_transformers(name: str, tmp_path: Path) -> None:
    kind, settings = PIXELS[name]
    saved(tmp_path, image_size=32 if settings else 224)
    rewritten(tmp_path / "preprocessor_config.json", image_processor_type=f"{kind}ImageProcessor", **settings)
    wanted, found, classifier = pixels_of(tmp_path, kind)
    assert wanted.shape == found.shape
    assert float(np.abs(wanted - found).max()) < 0.02
    assert not classifier.report.assumed.keys() - {"classes"}


@pytest.mark.parametrize("has_both", [False, True])
def test_the_processor_file_of_transformers_5_is_read(tmp_path: Path, has_both: bool) -> None:
    saved(tmp_path)
    nested = {"image_processor_type": "ViTImageProcessorFast", "size": 32, "image_mean": [0.1] * 3, "resample": 3}
    rewritten(tmp_path / "processor_config.json", image_processor=nested, processor_class="CLIPProcessor")
    if has_both:
        rewritten(tmp_path / "preprocessor_config.json", image_processor_type="ViTImageProcessor", resample=0)
    wanted, found, _ = pixels_of(tmp_path, "ViT")
    assert float(np.abs(wanted - found).max()) < 0.02


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        *(({name: False}, UNSUPPORTED) for name in ("do_resize", "do_rescale")),
        *(({"do_pad": True}, UNSUPPORTED), ({"resample": 5}, UNSUPPORTED)),
        ({"rescale_factor": 1 / 127.5}, UNSUPPORTED),
        ({"image_processor_type": "ConvNextImageProcessor"}, UNSUPPORTED),
        ({"size": {"shortest_edge": 32, "longest_edge": 64}}, UNSUPPORTED),
        ({"image_processor_type": "CLIPImageProcessor", "size": 12, "crop_size": 32}, INVALID),  # beyond the picture
        ({"image_mean": [0.5], "image_std": [0.5]}, "weights.channels-mismatched"),
    ],
)
def test_a_processor_that_is_not_supported_is_refused(tmp_path: Path, fields: dict[str, Any], code: str) -> None:
    saved(tmp_path)
    written = {"image_processor_type": "ViTImageProcessor", "size": 32, **fields}
    rewritten(tmp_path / "preprocessor_config.json", **written)
    with refused(code):
        vitkit.load(tmp_path)


def test_pictures_of_another_size_are_named_or_positions_resized(tmp_path: Path) -> None:
    for kind in ("ViT", "Dinov2"):
        saved(tmp_path / kind, kind, **({"mlp_ratio": 2} if kind == "Dinov2" else {}))
        written = {"image_processor_type": "ViTImageProcessor", "size": {"height": 40, "width": 48}}
        rewritten(tmp_path / kind / "preprocessor_config.json", **written)
    assert any("makes pictures of (40, 48)" in note for note in vitkit.load(tmp_path / "ViT").report.notes)
    assert vitkit.load(tmp_path / "Dinov2").model.config.image_size == (40, 48)
    rewritten(tmp_path / "ViT" / "preprocessor_config.json", size={"shortest_edge": 32})
    assert any("only its middle square is used" in note for note in vitkit.load(tmp_path / "ViT").report.notes)


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
        config: Any = transformers.DINOv3ViTConfig(**SIZES, **DINO[kind])
        return randomise(transformers.DINOv3ViTModel(config)).eval()
    name, fields = BEIT[kind]
    own = getattr(transformers, f"{name}Config")(**SIZES, **fields)
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
    assert found.classes == tuple(f"LABEL_{i}" for i in range(4)) * (kind in BEIT)


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
    config = transformers.BeitConfig(**SIZES, vocab_size=7, use_relative_position_bias=True)
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
    placed = {**state, "beit.embeddings.position_embeddings": torch.zeros(1, 17, 48)}
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
