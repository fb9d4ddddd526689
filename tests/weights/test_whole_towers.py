"""Whole files of CLIP and SigLIP, in the layouts of transformers and OpenCLIP: the image encoder, and what is left."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import transformers
from open_clip.model import CLIP, CLIPTextCfg, CLIPVisionCfg
from safetensors.torch import load_file, save_file
from torch import Tensor

import runs
import vitkit
import wordy
from refusals import refused
from tiny import largest_difference, randomise
from vitkit.data import CLIP_MEAN
from vitkit.errors import VitkitError
from vitkit.weights import inspect, load
from weights.spoiling import Spoilt
from weights.test_modern import MODERN, folder_of, theirs

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
IMAGES = {**SIZES, "intermediate_size": 48, "image_size": 16, "patch_size": 4}
WORDS = {"vocab_size": 50, "max_position_embeddings": 8, "bos_token_id": 48, "eos_token_id": 49}
TEXTS = {**SIZES, "intermediate_size": 48, **WORDS}
TOWERS: dict[str, Any] = {"text_config": TEXTS, "vision_config": IMAGES}
ERF = {**IMAGES, "hidden_act": "gelu", "layer_norm_eps": 1e-3}
BATCH = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(1))
DECODER = {"decoder_hidden_size": 32, "decoder_num_attention_heads": 2, "decoder_intermediate_size": 48}
Read = Callable[[Any], Tensor]


def of_tower(model: Any) -> Tensor:
    features: Tensor = model.vision_model(BATCH).pooler_output
    return features


# transformers' configurations of models of these names, and the pooled features of `BATCH` by them
WHOLE: dict[str, tuple[str, dict[str, Any], Read]] = {
    "CLIPModel": ("CLIP", {**TOWERS, "projection_dim": 24}, of_tower),
    "CLIPModel erf": ("CLIP", {**TOWERS, "vision_config": ERF, "projection_dim": 24}, of_tower),
    "CLIPVisionModelWithProjection": ("CLIPVision", {**IMAGES, "projection_dim": 24}, of_tower),
    "SiglipModel": ("Siglip", TOWERS, of_tower),
    "SiglipForImageClassification": ("Siglip", {**TOWERS, "num_labels": 7}, lambda model: model(BATCH).logits),
    "ViTMAEForPreTraining": (
        "ViTMAE",
        {**IMAGES, **DECODER, "decoder_num_hidden_layers": 1, "mask_ratio": 0.0},
        lambda model: model.vit(BATCH).last_hidden_state[:, 0],
    ),
}


def made(name: str) -> tuple[Any, Read]:
    wordy.quiet()
    torch.manual_seed(0)
    config, fields, read = WHOLE[name]
    own = getattr(transformers, f"{config}Config")(**fields)
    return randomise(getattr(transformers, name.partition(" ")[0])(own)).eval(), read


@pytest.mark.parametrize("name", WHOLE)
def test_features_are_transformers_and_what_is_left_out_is_said(tmp_path: Path, name: str) -> None:
    model, read = made(name)
    model.save_pretrained(tmp_path / "folder")
    found = load(tmp_path / "folder")
    with torch.inference_mode():
        assert largest_difference(found.model(BATCH), read(model)) <= 1e-5
    assert found.report.is_complete
    assert {"preprocess"} == set(found.report.assumed)
    if name in ("CLIPModel", "SiglipModel", "ViTMAEForPreTraining"):
        left = {key for key in model.state_dict() if key.startswith(("text_", "decoder.", "logit_", "visual_proj"))}
        assert {key.partition(".")[0] for key in found.report.dropped} == {key.partition(".")[0] for key in left}


@pytest.mark.parametrize("name", ["CLIPModel", "SiglipModel"])
def test_a_tensor_of_the_image_encoder_that_is_missing_is_named(tmp_path: Path, name: str) -> None:
    made(name)[0].save_pretrained(tmp_path)
    folder = Spoilt(tmp_path)
    for spoiled in folder.tensors:
        if not spoiled.startswith(("text_", "logit_", "visual_projection.")) and "mask_token" not in spoiled:
            with pytest.raises(VitkitError, match=spoiled):
                folder.without(spoiled)


def test_what_config_json_leaves_out_is_transformers_default(tmp_path: Path) -> None:
    """As on the hub, where `vision_config` names what differs from the default alone."""
    torch.manual_seed(0)
    small = {"hidden_size": 48, "num_hidden_layers": 1, "intermediate_size": 48, "image_size": 16, "patch_size": 4}
    model = transformers.SiglipVisionModel(transformers.SiglipVisionConfig(**small)).eval()  # 12 heads, of 4 features
    model.save_pretrained(tmp_path)
    written = {"model_type": "siglip", "vision_config": {"image_size": 16, "patch_size": 4}}
    (tmp_path / "config.json").write_text(json.dumps(written))
    found = load(tmp_path)
    assert (found.model.config.heads, found.model.config.gelu, found.model.config.norm_eps) == (12, "tanh", 1e-6)
    with torch.inference_mode():
        assert largest_difference(found.model(BATCH), model(BATCH).pooler_output) <= 1e-5


def test_other_kinds_of_clip_are_refused_by_name(tmp_path: Path) -> None:
    config = transformers.CLIPConfig(text_config=TEXTS, vision_config=IMAGES, num_labels=7)
    transformers.CLIPForImageClassification(config).save_pretrained(tmp_path)
    with refused("weights.architecture-unsupported", "CLIPForImageClassification"):
        inspect(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "chinese_clip", "vision_config": IMAGES}))
    with refused("weights.architecture-unsupported", "chinese_clip"):
        inspect(tmp_path)


VISION: dict[str, Any] = {"layers": 2, "width": 32, "head_width": 8, "patch_size": 4, "image_size": 16}
PIXELS: dict[str, Any] = {"mean": [0.1] * 3, "std": [0.2] * 3, "interpolation": "bilinear", "resize_mode": "squash"}


def openclip(*, quick: bool = False, **fields: Any) -> Any:
    torch.manual_seed(0)
    texts = CLIPTextCfg(context_length=8, vocab_size=50, width=32, heads=2, layers=1)
    model = CLIP(24, CLIPVisionCfg(**VISION, **fields), texts, quick_gelu=quick)
    randomise(model)
    return model.eval()


def assert_projects_as(model: Any, found: Any) -> None:
    """Where an image of `BATCH` is compared with a text."""
    with torch.inference_mode():
        assert largest_difference(found.model(BATCH) @ model.visual.proj, model.encode_image(BATCH)) <= 1e-5


@pytest.mark.parametrize(("quick", "ls_init_value"), [(False, None), (True, 0.1)])
def test_open_clips_file(tmp_path: Path, quick: bool, ls_init_value: float | None) -> None:
    model = openclip(quick=quick, ls_init_value=ls_init_value)
    torch.save(model.state_dict(), tmp_path / "open_clip_pytorch_model.bin")
    asked = {"heads": 4, **({"gelu": "quick"} if quick else {})}
    found = load(tmp_path / "open_clip_pytorch_model.bin", **asked)
    assert_projects_as(model, found)
    assert found.report.format == "OpenCLIP"
    assert ("gelu" in found.report.assumed) == (not quick)
    assert "text encoder" in found.report.dropped["token_embedding.weight"]


def test_open_clips_folder_says_it_all(tmp_path: Path) -> None:
    model = openclip(quick=True)
    save_file(model.state_dict(), tmp_path / "open_clip_model.safetensors")
    written = {"model_cfg": {"embed_dim": 24, "quick_gelu": True, "vision_cfg": VISION}, "preprocess_cfg": PIXELS}
    (tmp_path / "open_clip_config.json").write_text(json.dumps(written))
    found = load(tmp_path)
    assert_projects_as(model, found)
    own = found.preprocess
    assert (own.fit, own.mean, own.interpolation) == ("squash", (0.1, 0.1, 0.1), "bilinear")
    assert not found.report.assumed
    written["model_cfg"]["vision_cfg"] = {**VISION, "attentional_pool": True}
    (tmp_path / "open_clip_config.json").write_text(json.dumps(written))
    with refused("weights.description-unsupported", "attentional_pool"):
        inspect(tmp_path)


def test_a_spoilt_description_of_open_clips_is_refused(tmp_path: Path) -> None:
    save_file(openclip().state_dict(), tmp_path / "open_clip_model.safetensors")
    told = {"model_cfg": {"embed_dim": 24, "vision_cfg": VISION}, "preprocess_cfg": PIXELS}
    spoilt = [{**told, "preprocess_cfg": {**PIXELS, name: {"a": 1}}} for name in PIXELS]
    spoilt += [{**told, "model_cfg": {"vision_cfg": {**VISION, "image_size": -1}}}]
    for written in spoilt:
        (tmp_path / "open_clip_config.json").write_text(json.dumps(written))
        with pytest.raises(VitkitError):
            inspect(tmp_path)


def test_open_clips_tensors_that_are_missing_are_named(tmp_path: Path) -> None:
    save_file(openclip(ls_init_value=0.1).state_dict(), tmp_path / "x.safetensors")
    file = Spoilt(tmp_path / "x.safetensors")
    for spoiled in (key for key in file.tensors if key.startswith("visual.") and key != "visual.proj"):
        with pytest.raises(VitkitError, match=spoiled):
            file.without(spoiled, heads=4)


OF_TIMM = ("vit_base_patch16_clip_quickgelu_224", "vit_base_patch16_siglip_224", "vit_base_patch32_siglip_gap_256")


@pytest.mark.parametrize("name", OF_TIMM)
def test_what_a_bare_file_does_not_tell_is_assumed_aloud(tmp_path: Path, name: str) -> None:
    save_file(theirs(name).state_dict(), tmp_path / "bare.safetensors")
    found = vitkit.load(tmp_path / "bare.safetensors", heads=4)
    assert found.model.config.gelu == "erf"
    assert "gelu" in found.report.assumed
    assert (found.preprocess.mean == CLIP_MEAN) == ("_clip_" in name)
    told = vitkit.load(folder_of(theirs(name), name, tmp_path / "folder"))
    assert told.model.config.gelu == MODERN[name][1].get("gelu", "erf")
    assert "gelu" not in told.report.assumed


@pytest.mark.parametrize("name", OF_TIMM)
def test_what_is_written_for_timm_answers_there(tmp_path: Path, name: str) -> None:
    ours = vitkit.load(folder_of(theirs(name), name, tmp_path / "folder"))
    vitkit.convert(tmp_path / "folder", tmp_path / "written", to="timm")
    described = json.loads((tmp_path / "written" / "config.json").read_text())
    again = timm.create_model(described["architecture"], num_classes=5, **described["model_args"]).eval()
    again.load_state_dict(load_file(tmp_path / "written" / "model.safetensors"))
    images = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        assert largest_difference(again(images), ours.model(images)) <= 1e-5


def test_a_model_that_pools_by_attention_is_trained_reported_on_and_explained(tmp_path: Path) -> None:
    data = runs.shared_photos()
    fields = {"model": "vit_micro_patch4_16", "model_fields": {"pool": "map"}, "weights": "none", "epochs": 1}
    run = vitkit.train(data, vitkit.Recipe(workers=0, **fields), out=tmp_path / "run")
    assert run.report.is_file()
    photo = data / "red" / "img1.png"
    assert list(run.classifier.explain(photo, "all").maps) == ["occlusion"]
    with refused("explanation.pooling-unsupported", "occlusion"):
        run.classifier.explain(photo)
