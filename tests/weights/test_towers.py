"""CLIP's and SigLIP's image encoders in timm's layout: timm's answers, from a bare file and from a folder."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import load_file, save_file

import runs
import vitkit
from tiny import largest_difference
from vitkit.data import CLIP_MEAN
from vitkit.errors import VitkitError
from vitkit.weights import inspect

TOWERS = {  # timm's name, and what of it a bare file does not tell
    "vit_base_patch16_clip_224": {},
    "vit_base_patch16_clip_quickgelu_224": {"gelu": "quick"},
    "vit_base_patch16_siglip_224": {},
    "vit_base_patch32_siglip_256": {"gelu": "tanh"},
    "vit_base_patch16_siglip_gap_224": {},
    "vit_base_patch32_siglip_gap_256": {"gelu": "tanh"},
}


@functools.cache
def tower(name: str) -> Any:
    """timm's model with two small layers and random weights."""
    torch.manual_seed(0)
    model = timm.create_model(name, img_size=64, embed_dim=64, depth=2, num_heads=4, num_classes=5).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.2 * torch.randn_like(parameter))
    return model


def folder_of(model: Any, name: str, path: Path) -> Path:
    """As the hub has it."""
    path.mkdir()
    save_file(model.state_dict(), path / "model.safetensors")
    pixels = {"input_size": [3, 64, 64], "mean": [0.5] * 3, "std": [0.5] * 3, "interpolation": "bicubic"}
    described = {
        "architecture": name,
        "num_classes": 5,
        "global_pool": model.global_pool,
        "model_args": {"img_size": 64, "num_heads": 4},
        "pretrained_cfg": {**pixels, "crop_pct": 1.0, "num_classes": 5},
    }
    (path / "config.json").write_text(json.dumps(described))
    return path


@pytest.mark.parametrize("name", TOWERS)
def test_answers_are_timms(tmp_path: Path, name: str) -> None:
    theirs = tower(name)
    save_file(theirs.state_dict(), tmp_path / "bare.safetensors")
    bare = vitkit.load(tmp_path / "bare.safetensors", heads=4, **TOWERS[name])
    told = vitkit.load(folder_of(theirs, name, tmp_path / "folder"))
    images = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        for ours in (bare.model, told.model):
            assert largest_difference(ours(images), theirs(images)) <= 1e-5
            assert largest_difference(ours.forward_features(images), theirs.forward_features(images)) <= 1e-5
            read = theirs.forward_head(theirs.forward_features(images), pre_logits=True)
            assert largest_difference(ours.forward_head(ours.forward_features(images), pre_logits=True), read) <= 1e-5
    assert sum(own.numel() for own in bare.model.parameters()) == sum(own.numel() for own in theirs.parameters())


@pytest.mark.parametrize("name", TOWERS)
def test_what_a_bare_file_does_not_tell_is_assumed_aloud(tmp_path: Path, name: str) -> None:
    save_file(tower(name).state_dict(), tmp_path / "bare.safetensors")
    found = vitkit.load(tmp_path / "bare.safetensors", heads=4)
    assert found.model.config.gelu == "erf"
    assert "gelu" in found.report.assumed
    assert (found.preprocess.mean == CLIP_MEAN) == ("_clip_" in name)
    told = vitkit.load(folder_of(tower(name), name, tmp_path / "folder"))
    assert told.model.config.gelu == TOWERS[name].get("gelu", "erf")
    assert "gelu" not in told.report.assumed


@pytest.mark.parametrize("name", TOWERS)
def test_a_tensor_that_is_missing_or_misshapen_is_named(tmp_path: Path, name: str) -> None:
    state = tower(name).state_dict()
    for spoiled in state:
        lacking = {key: own for key, own in state.items() if key != spoiled}
        save_file(lacking, tmp_path / "x.safetensors")
        with pytest.raises(VitkitError, match=spoiled.partition(".weight")[0].partition(".bias")[0]):
            inspect(tmp_path / "x.safetensors", heads=4)
        if state[spoiled].ndim > 1:
            wrong = torch.cat([state[spoiled]] * 2, dim=-1)
            save_file({**state, spoiled: wrong}, tmp_path / "x.safetensors")
            with pytest.raises(VitkitError):
                inspect(tmp_path / "x.safetensors", heads=4)


@pytest.mark.parametrize("name", TOWERS)
def test_what_is_written_for_timm_answers_there(tmp_path: Path, name: str) -> None:
    ours = vitkit.load(folder_of(tower(name), name, tmp_path / "folder"))
    vitkit.convert(tmp_path / "folder", tmp_path / "written", to="timm")
    described = json.loads((tmp_path / "written" / "config.json").read_text())
    theirs = timm.create_model(described["architecture"], num_classes=5, **described["model_args"]).eval()
    theirs.load_state_dict(load_file(tmp_path / "written" / "model.safetensors"))
    images = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        assert largest_difference(theirs(images), ours.model(images)) <= 1e-5


def test_other_layouts_refuse_what_they_cannot_express(tmp_path: Path) -> None:
    folder_of(tower("vit_base_patch16_clip_quickgelu_224"), "vit_base_patch16_clip_quickgelu_224", tmp_path / "folder")
    for to, end in (("hf", ""), ("npz", ".npz")):
        with pytest.raises(VitkitError, match="cannot express"):
            vitkit.convert(tmp_path / "folder", tmp_path / f"written-{to}{end}", to=to)


def test_a_model_that_pools_by_attention_is_trained_reported_on_and_explained_as_far_as_it_can_be(
    tmp_path: Path,
) -> None:
    data = runs.photos(tmp_path / "data")
    fields = {"model": "vit_micro_patch4_16", "model_fields": {"pool": "map"}, "weights": "none", "epochs": 1}
    run = vitkit.train(data, out=tmp_path / "run", workers=0, say=lambda line: None, **fields)
    assert run.report.is_file()
    photo = data / "red" / "img1.png"
    found = run.classifier.explain(photo, "all")
    assert list(found.maps) == ["occlusion"]
    with pytest.raises(VitkitError, match="--method occlusion"):
        run.classifier.explain(photo)


def test_maps_that_follow_what_the_head_reads_are_refused_where_it_reads_by_attention(tmp_path: Path) -> None:
    from vitkit.explanation import rollout

    name = "vit_base_patch16_siglip_224"
    model = vitkit.load(folder_of(tower(name), name, tmp_path / "folder")).model
    with pytest.raises(VitkitError, match="--method occlusion"):
        rollout(model, torch.zeros(1, 3, 64, 64))
