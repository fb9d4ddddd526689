"""How images are read, where a checkpoint does not say it: what lies beside it, and what somebody says."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms

import tiny
from refusals import refused
from vitkit import Preprocess, load
from vitkit.model import VisionTransformer, config_for
from vitkit.weights import preprocess_of

NAMES = ("daisy", "dandelion", "roses")
HALF = (0.5, 0.5, 0.5)
IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
OWN = Preprocess(size=(224, 224), fit="crop", crop_pct=0.9, interpolation="bicubic")
SCRIPTS = "resize=256,crop=224,interpolation=bilinear,mean=0.5,std=0.5"


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    """What the scripts of the tutorials leave: bare weights, and class_indices.json beside them."""
    model = tiny.randomise(VisionTransformer(config_for("vit_micro_patch8_16", 3)))
    torch.save(model.state_dict(), tmp_path / "model-9.pth")
    (tmp_path / "class_indices.json").write_text(json.dumps({str(i): name for i, name in enumerate(NAMES)}, indent=4))
    return tmp_path / "model-9.pth"


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    pixels = np.random.default_rng(0).integers(0, 256, (48, 40, 3), dtype=np.uint8)
    Image.fromarray(pixels).resize((400, 300)).save(tmp_path / "photo.png")
    return tmp_path / "photo.png"


def test_weights_beside_class_indices_json_are_read_as_the_scripts_that_write_it_do(trained: Path, photo: Path) -> None:
    steps = [transforms.Resize(int(16 * 256 / 224)), transforms.CenterCrop(16), transforms.ToTensor()]
    theirs = transforms.Compose([*steps, transforms.Normalize(HALF, HALF)])
    with Image.open(photo) as picture:
        assert torch.allclose(load(trained).read(photo), theirs(picture.convert("RGB")), atol=1e-6)


def test_weights_of_another_family_or_beside_another_file_keep_their_pixels(trained: Path) -> None:
    state = torch.load(trained)
    torch.save({"model": state}, trained)  # as DeiT's authors wrap theirs
    found = load(trained)
    assert found.preprocess.mean == IMAGENET["mean"] and found.report is not None
    assert "crop 0.875, as is usual for deit" in found.report.assumed["preprocess"]
    torch.save(state, trained)
    (trained.parent / "class_indices.json").write_text('{"0": "daisy"}')
    found = load(trained)
    assert found.preprocess.interpolation == "bicubic" and found.report is not None
    assert "as is usual for augreg" in found.report.assumed["preprocess"]


@pytest.mark.parametrize(
    ("said", "fields"),
    [
        (SCRIPTS, {"fit": "crop", "crop_pct": 224 / 256, "interpolation": "bilinear", "mean": HALF, "std": HALF}),
        ("resize=224", {"fit": "crop", "crop_pct": 1.0}),
        ("resize=224x224", {"fit": "squash"}),
        ("resize=256,256,crop=224", {"fit": "squash_crop", "crop_pct": 224 / 256}),
        ("fit=pad", {"fit": "pad"}),
        ("mean=0.485,0.456,0.406,std=0.229,0.224,0.225", IMAGENET),
        ("floor_crop=true", {"floor_crop": True}),
        ({"resize": 256, "crop": 224, "mean": 0.5}, {"fit": "crop", "crop_pct": 224 / 256, "mean": HALF}),
        ({"resize": [256, 256], "mean": [0.1, 0.2, 0.3]}, {"fit": "squash_crop", "mean": (0.1, 0.2, 0.3)}),
        ("torchvision", {"fit": "crop", "crop_pct": 224 / 256, "interpolation": "bilinear", **IMAGENET}),
        ("google", {"fit": "squash", "interpolation": "bilinear", "mean": HALF, "std": HALF}),
        (Preprocess(size=(224, 224), fit="squash", **IMAGENET), {"fit": "squash", **IMAGENET}),
    ],
    ids=str,
)
def test_a_preprocessing_may_be_said_in_many_ways(said: Any, fields: dict[str, Any]) -> None:
    found = preprocess_of(said, OWN)
    assert {name: getattr(found, name) for name in fields} == fields
    if isinstance(said, str) and "=" in said:
        unsaid = {"mean", "std", "interpolation"} - {part.partition("=")[0].strip() for part in said.split(",")}
        assert all(getattr(found, name) == getattr(OWN, name) for name in unsaid)


UNKNOWN, INVALID, MISMATCHED = "weights.preprocess-unknown", "weights.preprocess-invalid", "weights.size-mismatched"


@pytest.mark.parametrize(
    ("said", "code"),
    [
        *((said, UNKNOWN) for said in ("mine", "timm", "sise=3", "x" * 5000, {3: 4})),
        *(
            (said, INVALID)
            for said in ("256,crop=224", "mean=0.5,mean=0.4", "crop=224", "resize=128", 5, Path("x.json"))
        ),
        *((said, INVALID) for said in ("resize=256,crop_pct=0.9", "resize=256,fit=squash", "resize=256x300")),
        *((said, INVALID) for said in ("resize=big", {"resize": 256.0}, {"mean": "0.5"}, "mean=127.5,std=127.5")),
        *((said, MISMATCHED) for said in ("resize=256,crop=384", Preprocess(size=(384, 384)))),
        ("interpolation=cubic", "text.value-wrong"),
        ("mean=nan", "text.value-wrong"),
        ("mean=0.5,0.5", "weights.channels-mismatched"),
        ("std=1e-300", "data.preprocess-invalid"),
    ],
    ids=lambda own: str(own)[:40],
)
def test_what_is_no_preprocessing_for_the_model_is_refused(said: Any, code: str) -> None:
    with refused(code):
        preprocess_of(said, OWN)


def test_what_was_said_is_no_assumption_and_the_rest_still_is(trained: Path) -> None:
    whole = load(trained, preprocess="resize=16,crop=16,interpolation=bicubic,mean=0.4,std=0.2").report
    assert whole is not None and "preprocess" not in whole.assumed
    assert any(
        "preprocess, as requested: mean 0.4/0.4/0.4, std 0.2/0.2/0.2, crop, bicubic" in own for own in whole.notes
    )
    part = load(trained, preprocess="mean=0.4").report
    assert part.assumed["preprocess"].endswith("; except for mean, as requested")


def test_other_pixels_than_those_of_a_model_of_our_own_are_a_warning(trained: Path, tmp_path: Path) -> None:
    load(trained).save(tmp_path / "own")
    for source, said, warned in (
        (tmp_path / "own", {"mean": 0.4}, True),
        (tmp_path / "own", load(trained).preprocess, False),  # those of its training
        (trained, {"mean": 0.4}, False),
    ):
        report = load(source, preprocess=said).report
        assert report is not None
        assert [line for line in report.warnings if "its training" in line] == list(report.warnings)
        assert bool(report.warnings) == warned
