"""What we write in other layouts comes back to the bit, and timm and transformers themselves load it."""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
import transformers
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from PIL import Image

import runs
import vitkit
from refusals import refused
from tiny import build, images, largest_difference
from vitkit.classifier import Classifier
from vitkit.data import Preprocess
from vitkit.errors import VitkitError
from vitkit.weights import load, write
from vitkit.weights.formats.timm import preprocess_from_pretrained

SQUARE = {"image_size": (16, 16)}
DINO = {"layer_scale": 0.1, "pool": "token+gap", "mlp_size": 64}
CLIP = {"embed_norm": True, "patch_bias": False, "num_classes": 0, "gelu": "quick"}
SIGLIP = {"pool": "map", "num_classes": 0, "gelu": "tanh"}
# Models that a layout can express: the layouts, and the fields that differ from the tiny model.
EXPRESSIBLE: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "token": (("npz", "timm", "hf"), {}),
    "tanh, one channel": (("npz", "timm", "hf"), {"gelu": "tanh", "in_channels": 1}),
    "no head": (("npz", "timm", "hf"), {"num_classes": 0}),
    "gap": (("npz", "timm", "hf"), {"pool": "gap"}),
    "representation": (("npz",), {"representation_size": 20}),
    "representation without a head": (("npz", "hf"), {"representation_size": 32, "num_classes": 0}),
    "no qkv bias": (("timm", "hf"), {"qkv_bias": False}),
    "eps": (("hf",), {"norm_eps": 1e-12}),
    "distilled": (("timm", "hf"), {"distill_token": True, "distill_head": True}),
    "distil token alone": (("hf",), {"distill_token": True}),
    "DeiT III": (("timm",), {"layer_scale": 0.1, "prefix_positions": False}),
    "fc_norm": (("timm",), {"pool": "gap", "class_token": True, "fc_norm": True}),
    "registers": (("timm",), {"registers": 3, "layer_scale": 0.1, "prefix_positions": False}),
    "swiglu": (("timm",), {"mlp_kind": "swiglu", "layer_scale": 0.1, "mlp_size": 88}),
    "DINOv2 swiglu": (("hf",), {**DINO, "mlp_kind": "swiglu", "mlp_size": 88}),
    "DINOv2 registers": (("hf",), {**DINO, "registers": 4, "prefix_positions": False}),
    "CLIP": (("hf",), CLIP),
    "SigLIP": (("hf",), SIGLIP),
    "root hybrid": (("timm",), {"stem": (), "stem_kind": "timm", "image_size": (32, 32), "patch_size": 4}),
    "reference hybrid": (("npz",), {"stem": (1, 2), "image_size": (32, 32), "patch_size": 1}),
}
CASES = [(name, to) for name, (layouts, _) in EXPRESSIBLE.items() for to in layouts]


def classifier(**fields: Any) -> Classifier:
    model = build(**{**SQUARE, **fields})
    channels, names = model.config.in_channels, range(model.config.num_classes)
    preprocess = Preprocess(size=model.config.image_size, crop_pct=0.8, mean=(0.4,) * channels, std=(0.3,) * channels)
    return Classifier(model, tuple(f"class {i}" for i in names), preprocess)


def path_for(folder: Path, to: str) -> Path:
    return folder / ("model.npz" if to == "npz" else "model")


def assert_same_numbers(ours: Classifier, again: Classifier) -> None:
    expected, found = ours.model.state_dict(), again.model.state_dict()
    assert list(found) == list(expected)
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name


@pytest.mark.parametrize(("name", "to"), CASES)
def test_a_round_trip_changes_no_bit_and_other_libraries_agree(tmp_path: Path, name: str, to: str) -> None:
    source, path = classifier(**EXPRESSIBLE[name][1]), path_for(tmp_path, to)
    write(source, path, to)
    again = load(path)
    assert_same_numbers(source, again)
    batch = images(config=source.model.config)
    with torch.no_grad():
        ours = source.model(batch)
        assert torch.equal(again.model(batch), ours)
        if to == "timm":
            theirs = timm.create_model(f"local-dir:{path}", pretrained=True).eval()(batch)
            assert largest_difference(theirs, ours) <= 1e-5
        elif to == "hf":
            assert largest_difference(transformers_output(path, batch), ours) <= 1e-5
    assert again.classes == source.classes
    assert again.preprocess.mean == source.preprocess.mean
    assert again.preprocess.before_crop == source.preprocess.before_crop
    assert again.report.is_complete
    assert not again.report.assumed


@settings(max_examples=25)
@given(st.sampled_from(CASES), st.tuples(*[st.integers(1, 3)] * 3), st.integers(1, 5))
def test_models_of_any_size_come_back(case: tuple[str, str], sizes: tuple[int, int, int], classes: int) -> None:
    fields, (heads, layers, side) = EXPRESSIBLE[case[0]][1], sizes
    assume("stem" not in fields and "representation_size" not in fields and "swiglu" not in fields.values())
    width = {"hidden_size": 8 * heads, "mlp_size": 16 * heads if "mlp_size" in fields else 7}
    size = {**width, "heads": heads, "layers": layers, "image_size": (4 * side, 4 * side)}
    source = classifier(**{**fields, **size, "num_classes": classes if fields.get("num_classes", 1) else 0})
    with tempfile.TemporaryDirectory() as folder:
        write(source, path_for(Path(folder), case[1]), case[1])
        again = load(path_for(Path(folder), case[1]))
    assert_same_numbers(source, again)
    assert again.classes == source.classes


@pytest.fixture(autouse=True)
def quiet_transformers() -> Iterator[None]:
    transformers.logging.disable_progress_bar()
    yield
    transformers.logging.enable_progress_bar()


def transformers_output(path: Path, batch: torch.Tensor) -> torch.Tensor:
    described = json.loads((path / "config.json").read_text())
    cls = getattr(transformers, described["architectures"][0])
    model, loading = cls.from_pretrained(path, output_loading_info=True)
    missing = {name for name in loading["missing_keys"] if not name.startswith("pooler.")}
    assert not missing
    assert not loading["unexpected_keys"]
    output = model.eval()(batch)
    if hasattr(output, "logits"):
        return output.logits
    return output.last_hidden_state[:, 0] if loading["missing_keys"] else output.pooler_output


@pytest.mark.parametrize("fields", [{}, {"pool": "gap"}], ids=["token", "gap"])
def test_timm_reads_our_npz(tmp_path: Path, fields: dict[str, Any]) -> None:
    source = classifier(**fields)
    config = source.model.config
    write(source, tmp_path / "model.npz", "npz")
    sizes = {"img_size": config.image_size, "patch_size": config.patch_size, "num_classes": config.num_classes}
    sizes |= {"embed_dim": config.hidden_size, "depth": config.layers, "num_heads": config.heads, "mlp_ratio": 1.5}
    gap = {"class_token": False, "global_pool": "avg", "fc_norm": False} if fields else {}
    theirs = timm.models.VisionTransformer(**sizes, **gap).eval()
    theirs.load_pretrained(str(tmp_path / "model.npz"))
    batch = images(config=config)
    with torch.no_grad():
        assert largest_difference(theirs(batch), source.model(batch)) <= 1e-5


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
def test_timms_names_in_one_file(tmp_path: Path, suffix: str) -> None:
    source = classifier(gelu="tanh", patch_size=(4, 8))
    path = tmp_path / f"model{suffix}"
    write(source, path, "timm")
    if suffix == ".pth":  # which cannot say what its tensors do not
        with refused("weights.tensor-misshapen"):
            load(path)
        state = torch.load(path, weights_only=True)
        assert all(torch.equal(tensor, state[name]) for name, tensor in source.model.state_dict().items())
        return
    again = load(path)
    assert_same_numbers(source, again)
    assert (again.model.config.gelu, again.model.config.heads) == ("tanh", 4)
    assert again.classes == source.classes
    assert again.preprocess == source.preprocess
    assert not again.report.assumed


HYBRID: dict[str, Any] = {"stem_kind": "timm", "image_size": (32, 32)}
REFUSED: dict[str, list[tuple[dict[str, Any], str]]] = {
    "npz": [
        ({"layer_scale": 0.1}, "layer_scale"),
        ({"distill_token": True}, "distill_token"),
        ({"norm_eps": 1e-5}, "norm_eps"),
        ({"pool": "token+gap"}, "pool"),
        ({"stem": (), **HYBRID}, "stem_kind"),
    ],
    "timm": [
        ({"representation_size": 20}, "representation_size"),
        ({"stem": (1, 1), **HYBRID}, "stem"),
        ({"norm_eps": 1e-5}, "norm_eps"),
    ],
    "hf": [
        ({"pool": "gap", "class_token": True}, "pool"),
        (CLIP | {"num_classes": 7}, "num_classes"),
        (CLIP | {"pool": "gap", "class_token": True}, "pool"),
        (SIGLIP | {"embed_norm": True}, "patch_bias"),
        (SIGLIP | {"qkv_bias": False}, "qkv_bias"),
        ({"representation_size": 32}, "representation_size"),
        ({**DINO, "pool": "token"}, "pool"),
        ({**DINO, "mlp_size": 48}, "mlp_size"),
        ({"stem": (), "image_size": (32, 32)}, "stem"),
    ],
}
EVERYWHERE: list[tuple[dict[str, Any], str]] = [
    *(({"norm": "post"}, "norm"), ({"qk_scale": 0.3}, "qk_scale"), ({"position": "sincos_2d"}, "position")),
    *(({"position_at": "every_layer"}, "position_at"), ({"patch_norm": True}, "patch_norm")),
    *(({"mlp_kind": "conv"}, "mlp_kind"), ({"conv_layers": (0,)}, "conv_layers")),
]


@pytest.mark.parametrize("to", ["npz", "timm", "hf"])
def test_what_layouts_cannot_say_is_refused_by_name(tmp_path: Path, to: str) -> None:
    for fields, name in REFUSED[to] + EVERYWHERE:
        with refused("weights.layout-unsuitable", f" {name} "):
            write(classifier(**fields), path_for(tmp_path, to), to)
    several = classifier()
    several.thresholds = (0.4,) * len(several.classes)
    with refused("weights.layout-unsuitable", "thresholds"):
        write(several, path_for(tmp_path, to), to)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("name", "to"), [("token", "npz"), ("distilled", "timm"), ("distilled", "hf")])
def test_probabilities_stay_calibrated_in_layouts_that_know_no_temperature(tmp_path: Path, name: str, to: str) -> None:
    source = classifier(**EXPRESSIBLE[name][1])
    source.temperature = 0.5
    before = {key: tensor.clone() for key, tensor in source.model.state_dict().items()}
    write(source, path_for(tmp_path, to), to)
    batch = images(config=source.model.config)
    torch.testing.assert_close(load(path_for(tmp_path, to)).probabilities(batch), source.probabilities(batch))
    assert all(tensor.equal(before[key]) for key, tensor in source.model.state_dict().items())  # the model stays


@pytest.mark.parametrize("fit", ["crop", "squash", "squash_crop", "pad"])
@pytest.mark.parametrize("to", ["npz", "timm", "hf"])
def test_pixels_come_back_or_are_refused(tmp_path: Path, fit: Any, to: str) -> None:
    source = classifier()
    source.preprocess = Preprocess(size=(16, 16), fit=fit, crop_pct=0.8, interpolation="bilinear", mean=(0.1, 0.2, 0.3))
    try:
        write(source, path_for(tmp_path, to), to)
    except VitkitError as error:
        assert fit in str(error)
        assert (fit, to) == ("pad", "hf")
        return
    again = load(path_for(tmp_path, to)).preprocess
    assert (again.fit, again.interpolation, again.mean) == (fit, "bilinear", (0.1, 0.2, 0.3))
    if fit.endswith("crop"):
        assert again.before_crop == source.preprocess.before_crop


def test_a_transform_or_numbers_that_are_not_supported_are_named_before_the_first_picture() -> None:
    for name, value in (("interpolation", "hamming"), ("crop_pct", 1.1), ("crop_mode", "border")):
        described = {"mean": [0.5] * 3, "std": [0.2] * 3, "crop_pct": 0.9, name: value}
        preprocess = Preprocess(size=(32, 32), **preprocess_from_pretrained(described))
        with refused("data.preprocess-unknown", "border" if name == "crop_mode" else name):
            preprocess(Image.new("RGB", (40, 40)))
    with refused("weights.description-invalid", "mean"):
        preprocess_from_pretrained({"mean": [None], "std": [0.5] * 3})


@pytest.mark.parametrize("missing", ["mean", "std", "interpolation", "crop_pct", "crop_mode"])
def test_a_value_that_timms_config_lacks_is_timms_default_and_the_others_are_read(tmp_path: Path, missing: str) -> None:
    write(classifier(), tmp_path / "model", "timm")
    file = tmp_path / "model" / "config.json"
    described = json.loads(file.read_text())
    stated = {"mean": [0.4] * 3, "std": [0.3] * 3, "interpolation": "bilinear", "crop_pct": 0.7, "crop_mode": "squash"}
    described["pretrained_cfg"] = described["pretrained_cfg"] | stated
    described["pretrained_cfg"].pop(missing)
    file.write_text(json.dumps(described))
    found = load(tmp_path / "model")
    theirs = timm.data.create_transform(**timm.data.resolve_data_config({}, described["pretrained_cfg"]))
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 48, 3), dtype=np.uint8))
    np.testing.assert_allclose(found.preprocess(picture), theirs(picture).numpy(), atol=1e-6)
    assert found.report is not None and "preprocess" not in found.report.assumed


@pytest.mark.parametrize(
    ("name", "to"),
    [("a", "folder"), ("a.npz", "npz"), ("a.pth", "timm"), ("a", "timm"), ("a", "hf")],
)
def test_a_full_disk_is_told_and_leaves_nothing(tmp_path: Path, name: str, to: str) -> None:
    (tmp_path / "out").mkdir()
    classifier().save(tmp_path / "model")
    with runs.files_of_at_most(10_000), pytest.raises(OSError, match=r"File too large|cannot write .*a"):
        vitkit.convert(tmp_path / "model", tmp_path / "out" / name, to=to)  # type: ignore[arg-type]
    assert list((tmp_path / "out").iterdir()) == []
