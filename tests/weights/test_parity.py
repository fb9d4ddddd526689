"""Checkpoints of other libraries, and of the reference implementation, give the logits that they give at home."""

import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
import transformers
from safetensors.torch import save_file
from torch import Tensor
from torchvision.models import get_model_weights, get_weight, vision_transformer

import foreign
from refusals import refused
from tiny import build, images, largest_difference, randomise
from vitkit.classifier import Classifier
from vitkit.data import IMAGENET_MEAN, Preprocess
from vitkit.weights import Checkpoint, StoredTensor, inspect, load, read_foreign, write

HF = [name for name in foreign.NAMES if name.startswith("HF")]
ORACLES = Path(os.environ.get("VITKIT_TEST_DATA") or "nowhere") / "oracle" / "jax"
CASES = ("token", "token_rep", "gap", "hybrid_stem", "hybrid_two_stages")


def answers(classifier: Classifier, batch: Tensor) -> Tensor:
    with torch.no_grad():
        return classifier.model(batch)


def assert_agrees(classifier: Classifier, other: foreign.Foreign) -> None:
    assert largest_difference(answers(classifier, foreign.images(other)), foreign.logits(other)) <= 1e-5
    assert len(classifier.report.matched) == classifier.report.parameters
    assert classifier.report.is_complete


@pytest.mark.skipif(not ORACLES.is_dir(), reason="VITKIT_TEST_DATA does not name the reference's checkpoints")
@pytest.mark.parametrize("case", CASES)
def test_the_references_checkpoints_from_the_npz_alone(case: str) -> None:
    classifier = load(ORACLES / case / "checkpoint.npz")
    expected = json.loads((ORACLES / case / "config.json").read_text())
    config = classifier.model.config
    assert (config.heads, config.layers, config.mlp_size) == (expected["heads"], expected["depth"], expected["mlp"])
    assert config.image_size == tuple(expected["img"])
    assert config.stem == (None if expected["res"] is None else tuple(expected["res"]))
    with np.load(ORACLES / case / "io.npz") as io, torch.no_grad():
        batch = torch.from_numpy(io["images_nhwc"]).permute(0, 3, 1, 2)
        tokens = classifier.model.forward_features(batch)
        features = classifier.model.forward_head(tokens, pre_logits=True)
        assert np.abs(features.numpy() - io["features"]).max() <= 2e-5
        assert np.abs(classifier.model(batch).numpy() - io["logits"]).max() <= 2e-5


DATA = ORACLES.parents[1]
DEIT, FLOWERS = DATA / "weights" / "deit_tiny_patch16_224.pth", DATA / "data" / "flowers"


@pytest.mark.skipif(not DEIT.is_file(), reason="VITKIT_TEST_DATA does not name DeiT's weights")
def test_real_weights_on_real_photographs() -> None:
    classifier = load(DEIT)
    assert len(classifier.report.matched) == classifier.report.parameters == 152
    assert classifier.report.is_complete
    assert not classifier.report.dropped
    theirs = timm.create_model("deit_tiny_patch16_224").eval()
    theirs.load_state_dict(torch.load(DEIT, weights_only=True)["model"])
    paths = [path for kind in sorted(FLOWERS.iterdir()) for path in sorted(kind.glob("*.jpg"))[:1]]
    assert len(paths) == 5
    batch = torch.stack([classifier.read(path) for path in paths])
    with torch.no_grad():
        assert largest_difference(classifier.model(batch), theirs(batch)) <= 1e-4
    named = [prediction.label for prediction in classifier.predict(sorted((FLOWERS / "daisy").glob("*.jpg"))[:12])]
    assert named.count("daisy") >= 8


@pytest.mark.parametrize("name", [name for name in foreign.NAMES if name not in ("timm R26", "timm DINOv2", "HF MSN")])
def test_a_bare_state_dictionary(name: str, tmp_path: Path) -> None:
    other = foreign.make(name)
    suffix = ".pth" if foreign.NAMES.index(name) % 2 else ".safetensors"
    assert_agrees(load(foreign.save_state(other, tmp_path / f"weights{suffix}"), **other.options), other)


@pytest.mark.parametrize("name", HF)
def test_a_hugging_face_folder(name: str, tmp_path: Path) -> None:
    other = foreign.make(name)
    options = {"max_shard_size": "20KB"} if HF.index(name) % 2 else {}
    classifier = load(foreign.save_folder(other, tmp_path / "model", **options))
    assert_agrees(classifier, other)
    assert classifier.model.config.norm_eps == other.model.config.layer_norm_eps
    assert classifier.classes == tuple(other.model.config.id2label.values())


def test_a_pickled_hugging_face_folder(tmp_path: Path) -> None:
    other = foreign.make("HF ViT")
    folder = foreign.save_folder(other, tmp_path / "model")
    (folder / "model.safetensors").unlink()
    state = other.model.state_dict()
    placed = {name: f"pytorch_model-0000{1 + index % 2}-of-00002.bin" for index, name in enumerate(state)}
    for file in set(placed.values()):
        torch.save({name: tensor for name, tensor in state.items() if placed[name] == file}, folder / file)
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": placed}))
    assert_agrees(load(folder), other)


def test_decoders_and_projection_heads_are_dropped_and_reported(tmp_path: Path) -> None:
    other = foreign.make("timm MAE")
    state = other.model.state_dict()
    extra = {"head.mlp.0.weight": torch.zeros(9, 32), "head.last_layer.weight_g": torch.zeros(9, 1)}
    decoder = {"mask_token": torch.zeros(1, 1, 16), "decoder_blocks.0.norm1.weight": torch.zeros(16)}
    teacher = {f"module.backbone.{name}": own for name, own in state.items()}  # a training checkpoint of DINO
    teacher |= {f"module.{name}": own for name, own in extra.items()}
    student = {name: own + 1 for name, own in teacher.items()}
    training = {"student": student, "teacher": teacher, "epoch": 3, "dino_loss": {"center": torch.zeros(1, 9)}}
    for content, dropped in ((training, extra), ({"model": state | extra | decoder}, extra | decoder)):
        torch.save(content, tmp_path / "weights.pth")
        classifier = load(tmp_path / "weights.pth", heads=4)
        assert_agrees(classifier, other)
        assert set(classifier.report.dropped) == set(dropped)
        assert any("no head" in note for note in classifier.report.notes)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions_become_float32(dtype: torch.dtype, tmp_path: Path) -> None:
    other = foreign.make("timm token")
    rounded = {name: tensor.to(dtype) for name, tensor in other.model.state_dict().items()}
    save_file(rounded, tmp_path / "weights.safetensors")
    classifier = load(tmp_path / "weights.safetensors", heads=4)
    assert all(parameter.dtype == torch.float32 for parameter in classifier.model.parameters())
    other.model.load_state_dict({name: tensor.float() for name, tensor in rounded.items()})
    assert_agrees(classifier, other)


def dinov2_names(state: dict[str, Tensor], chunk: str) -> dict[str, Tensor]:
    """timm's register model as DINOv2's authors store it: the class token has a position of its own."""
    renamed = {"mask_token": torch.zeros(1, 32)}
    for name, tensor in state.items():
        name = name.replace("reg_token", "register_tokens").replace("mlp.fc1", "mlp.w12").replace("mlp.fc2", "mlp.w3")
        renamed[re.sub(r"^blocks\.(\d+)", rf"blocks{chunk}.\1", name)] = tensor
    if "register_tokens" in renamed:
        own = torch.full((1, 1, 32), 0.25)
        renamed["cls_token"] = renamed["cls_token"] - own
        renamed["pos_embed"] = torch.cat([own, renamed["pos_embed"]], dim=1)
    return renamed


@pytest.mark.parametrize(
    ("name", "chunk"),  # none, one of all blocks, or one of each block
    [("timm DINOv2 registers", ""), ("timm DINOv2 swiglu", r".0"), ("timm DINOv2 swiglu", r".\1")],
)
def test_the_authors_files_of_dinov2(name: str, chunk: str, tmp_path: Path) -> None:
    other = foreign.make(name)
    torch.save(dinov2_names(other.model.state_dict(), chunk), tmp_path / "weights.pth")
    classifier = load(tmp_path / "weights.pth", heads=4)
    assert classifier.report.format == "DINOv2"
    assert_agrees(classifier, other)


@pytest.fixture
def npz(tmp_path: Path) -> tuple[Classifier, dict[str, np.ndarray], Path]:
    model = build(image_size=(16, 16), gelu="tanh")
    source = Classifier(model, tuple(map(str, range(7))), Preprocess(size=(16, 16)))
    write(source, tmp_path / "published.npz", "npz")
    with np.load(tmp_path / "published.npz") as arrays:
        return source, dict(arrays), tmp_path / "variant.npz"


def newer(name: str) -> str:
    """The numbering of a fresh save."""
    for old, new in (("LayerNorm_2", "LayerNorm_1"), ("Attention_1", "Attention_0"), ("MlpBlock_3", "MlpBlock_0")):
        name = name.replace(old, new)
    return name


def stacked(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """As big_vision stores a scanned encoder: one array for all blocks, positions at top level."""
    pattern = re.compile(r"Transformer/encoderblock_(\d+)/(.*)")
    whole = {newer(name): array for name, array in arrays.items()}
    rest = {name: array for name, array in whole.items() if not pattern.match(name)}
    kinds = {match[2] for name in whole if (match := pattern.match(name))}
    for kind in kinds:
        rows = [whole[f"Transformer/encoderblock_{layer}/{kind}"] for layer in range(3)]
        rest[f"Transformer/encoderblock/{kind}"] = np.stack(rows)
    positions = rest.pop("Transformer/posembed_input/pos_embedding")
    rest["cls"] = rest["cls"] + positions[:, :1]  # the class token's position is folded into it
    rest["pos_embedding"] = positions[:, 1:]
    return {f"params/{name}": array for name, array in rest.items()}


VARIANTS: dict[str, Any] = {
    "newer numbering": lambda arrays: {newer(name): array for name, array in arrays.items()},
    "opt/target": lambda arrays: {f"opt/target/{n}": a for n, a in arrays.items()} | {"opt/state/step": np.zeros(1)},
    "params": lambda arrays: {f"params/{newer(name)}": array for name, array in arrays.items()},
    "params/img": lambda arrays: {f"params/img/{n}": a for n, a in arrays.items()} | {"params/txt/t": np.zeros(1)},
    "big_vision stacked": stacked,
}


@pytest.mark.parametrize("name", VARIANTS)
def test_variants_of_the_npz(name: str, npz: tuple[Classifier, dict[str, np.ndarray], Path]) -> None:
    source, arrays, path = npz
    np.savez(path, **VARIANTS[name](arrays))
    classifier = load(path)
    assert classifier.report.is_complete
    assert classifier.model.config.gelu == "tanh"
    assert classifier.preprocess.fit == "squash"
    batch = images(config=source.model.config)
    assert largest_difference(answers(classifier, batch), answers(source, batch)) <= 1e-6


def test_compressed_half_and_bfloat16_arrays(npz: tuple[Classifier, dict[str, np.ndarray], Path]) -> None:
    source, arrays, path = npz
    np.savez_compressed(path, **{name: array.astype(np.float16) for name, array in arrays.items()})
    half = load(path).model.state_dict()
    np.savez(
        path, **{n: torch.from_numpy(a).bfloat16().view(torch.int16).numpy().view("V2") for n, a in arrays.items()}
    )
    brain = load(path).model.state_dict()
    for name, original in source.model.state_dict().items():
        assert torch.equal(half[name], original.half().float())
        assert torch.equal(brain[name], original.bfloat16().float())


def test_the_seeds_own_files(tmp_path: Path) -> None:
    model = build(image_size=(16, 16), num_classes=21843, representation_size=32)
    torch.nn.init.zeros_(model.head.weight)
    torch.nn.init.zeros_(model.head.bias)
    state = dict(model.state_dict())
    state["pos_embedding.pos_embedding"] = state.pop("pos_embed")
    torch.save(state, tmp_path / "jx.pth")
    classifier = load(tmp_path / "jx.pth", heads=4)
    assert any("all zeros" in note for note in classifier.report.notes)
    assert classifier.model.config.representation_size == 32
    batch = images(config=model.config)
    with torch.no_grad():
        assert torch.equal(classifier.model.forward_features(batch), model.forward_features(batch))


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    save_file(build(image_size=(16, 16), representation_size=20).state_dict(), tmp_path / "plain.safetensors")
    return tmp_path / "plain.safetensors"


def test_another_number_of_classes_gives_a_new_head_of_zeros(plain: Path) -> None:
    classifier = load(plain, num_classes=5, heads=4)
    assert not classifier.model.head.weight.any()
    assert set(classifier.report.replaced) == {"head.weight", "head.bias"}
    assert set(classifier.report.dropped) == {"pre_logits.fc.weight", "pre_logits.fc.bias"}
    assert classifier.classes == ("0", "1", "2", "3", "4")
    assert load(plain, classes=["a", "b"], heads=4).classes == ("a", "b")
    assert load(plain, classes=list("abcdefg"), heads=4).model.head.weight.any(), "as many as there are"
    without = load(plain, num_classes=0, heads=4)
    assert without.model.head is None and without.classes == ()


def test_a_thousand_classes_are_taken_for_imagenets_and_384_pixels_for_the_whole_picture(tmp_path: Path) -> None:
    model = build(image_size=(384, 384), patch_size=(32, 32), hidden_size=128, num_classes=1000)
    save_file(model.state_dict(), tmp_path / "w.safetensors")
    plan = inspect(tmp_path / "w.safetensors")
    assert plan.config.heads == 2 and "64" in plan.report.assumed["heads"]
    assert plan.preprocess.crop_pct == 1.0
    assert (plan.classes[0], plan.classes[985], len(plan.classes)) == ("tench", "daisy", 1000)
    assert "1000" in plan.report.assumed["classes"]


def test_pixels_are_of_the_layout_unless_said(tmp_path: Path) -> None:
    state, half = build(image_size=(16, 16)).state_dict(), (0.5, 0.5, 0.5)
    for content, owner, expected in (
        (state, None, ("crop", 0.9, half)),
        ({"model": state}, None, ("crop", 0.875, IMAGENET_MEAN)),
        (state, "google", ("squash", 0.875, half)),
    ):
        torch.save(content, tmp_path / "w.pth")
        plan = inspect(tmp_path / "w.pth", heads=4, preprocess=owner)
        assert (plan.preprocess.fit, plan.preprocess.crop_pct, plan.preprocess.mean) == expected
        assert ("preprocess" in plan.report.assumed) == (owner is None)


@pytest.mark.parametrize(
    ("name", "size"),
    [
        *(("timm distilled", (8, 12)), ("timm gap without a token", (24, 20)), ("timm DeiT III", (8, 12))),
        *(("HF DeiT two heads", (8, 12)), ("HF Dinov2", (24, 20)), ("HF Dinov2 registers", (24, 20))),
    ],
)
def test_positions_are_resized_as_at_home(name: str, size: tuple[int, int], tmp_path: Path) -> None:
    other = foreign.make(name)
    batch = torch.randn(2, 3, *size)
    if name.startswith("HF"):
        classifier = load(foreign.save_folder(other, tmp_path / "model"), image_size=size)
        options = {} if "Dinov2" in name else {"interpolate_pos_encoding": True}
        with torch.no_grad():
            expected = other.model(batch, **options).logits
    else:
        classifier = load(foreign.save_state(other, tmp_path / "w.safetensors"), image_size=size, heads=4)
        (resized,) = classifier.report.resized
        assert (resized.old, resized.new, resized.convention) == ((4, 4), (size[0] // 4, size[1] // 4), "timm")
        other.model.set_input_size(img_size=size)  # type: ignore[operator]
        with torch.no_grad():
            expected = other.model(batch)
    assert classifier.preprocess.size == size
    assert largest_difference(answers(classifier, batch), expected) <= 1e-5


def test_positions_are_resized_as_torchvision_does(tmp_path: Path) -> None:
    other = foreign.make("torchvision")
    path = foreign.save_state(other, tmp_path / "w.pth")
    theirs = vision_transformer.interpolate_embeddings(24, 4, other.model.state_dict())
    found = load(path, image_size=24, heads=4).model.pos_embed
    assert isinstance(found, Tensor)
    assert largest_difference(found, theirs["encoder.pos_embedding"]) <= 1e-5


def test_a_grid_that_is_not_square_is_settled_by_the_image_size(tmp_path: Path) -> None:
    model = build(image_size=(8, 24))
    save_file(model.state_dict(), tmp_path / "w.safetensors")
    with refused("weights.grid-unknown", "image_size"):
        load(tmp_path / "w.safetensors", heads=4)
    classifier = load(tmp_path / "w.safetensors", image_size=(8, 24), heads=4)
    batch = images(config=model.config)
    assert torch.equal(answers(classifier, batch), model(batch))
    # As many patches in another grid are taken for that grid, aloud, and another patch size for another image size.
    save_file(build(image_size=(16, 16)).state_dict(), tmp_path / "w.safetensors")
    plan = inspect(tmp_path / "w.safetensors", image_size=(8, 32), heads=4)
    assert plan.report.resized == () and "2x8" in plan.report.assumed["grid"]
    plan = inspect(tmp_path / "w.safetensors", patch_size=8, heads=4)
    assert plan.config.image_size == (32, 32) and plan.report.resized[0].convention == "FlexiViT"


def shapes_alone(state: dict[str, Tensor]) -> Checkpoint:
    def read() -> Tensor:
        raise AssertionError("the numbers are not needed")

    stored = {name: StoredTensor(tuple(tensor.shape), torch.float32, read) for name, tensor in state.items()}
    return Checkpoint(path=Path("huge"), tensors=stored)


@pytest.mark.parametrize("library", ["torchvision", "transformers without config.json"])
def test_huge_has_sixteen_heads(library: str) -> None:
    with torch.device("meta"):
        if library == "torchvision":
            huge = shapes_alone(vision_transformer.vit_h_14(image_size=518).state_dict())
        else:
            sizes = {"hidden_size": 1280, "num_hidden_layers": 32, "intermediate_size": 5120, "patch_size": 14}
            model = transformers.ViTForImageClassification(transformers.ViTConfig(**sizes, num_attention_heads=16))
            huge = shapes_alone(model.state_dict())
    origin = read_foreign(huge, None, {}, allow_partial=False, image_size=None)
    assert (origin.config.heads, origin.config.layers, origin.config.patch_size) == (16, 32, (14, 14))
    assert "heads" not in origin.assumed


def test_what_the_tensors_say_cannot_be_said_otherwise(plain: Path) -> None:
    with refused("weights.field-contradicted", "layers"):
        load(plain, heads=4, layers=4)
    with refused("model.option-unknown", "nonsense"):
        load(plain, heads=4, nonsense=1)


CONFIGURED: dict[str, tuple[str, str, dict[str, Any]]] = {
    "pooler": ("ViT", "ViTModel", {}),  # which is the representation layer
    "patch, labels": ("ViT", "ViTForImageClassification", {"patch_size": [2, 4], "num_labels": 12}),
    "registers, gated": ("Dinov2WithRegisters", "Dinov2WithRegistersForImageClassification", {"use_swiglu_ffn": True}),
}


@pytest.mark.parametrize("name", CONFIGURED)
def test_what_config_json_says_counts(name: str, tmp_path: Path) -> None:
    family, model, options = CONFIGURED[name]
    other = randomise(foreign._hugging_face(family, model, **options).model).eval()
    if "num_labels" in options:
        other.config.id2label = {index: f"class {index}" for index in range(12)}  # "10" comes before "2" in the file
    other.save_pretrained(tmp_path / "model")  # type: ignore[operator]
    classifier = load(tmp_path / "model")
    ours = classifier.model.config
    batch = torch.randn(2, ours.in_channels, *ours.image_size)
    with torch.no_grad():
        output = other(batch)
    expected = output.logits if "logits" in output else output.pooler_output
    assert largest_difference(answers(classifier, batch), expected) <= 1e-5
    if "num_labels" in options:
        assert classifier.classes == tuple(f"class {index}" for index in range(12))


@pytest.mark.parametrize("name", ["HF DeiT", "HF Dinov2"])
def test_what_a_bare_hugging_face_file_cannot_say_is_reported(name: str, tmp_path: Path) -> None:
    path = foreign.save_state(foreign.make(name), tmp_path / "w.safetensors")
    assumed = inspect(path, heads=4).report.assumed
    assert "norm_eps" in assumed
    assert "gelu" in assumed
    said = inspect(path, heads=4, norm_eps=1e-12, gelu="erf").report.assumed
    assert not {"norm_eps", "gelu"} & set(said)


PUBLISHED = [str(weights) for name in ("l_16", "h_14") for weights in get_model_weights(f"vit_{name}")]


@pytest.mark.parametrize("published", PUBLISHED)
def test_pixels_are_those_that_torchvision_publishes(published: str) -> None:
    weights = get_weight(published)
    transforms = weights.transforms()
    name = published.split("_Weights")[0].lower()
    with torch.device("meta"):
        state = vision_transformer.__dict__[name](image_size=transforms.crop_size[0]).state_dict()
    origin = read_foreign(shapes_alone(state), None, {}, allow_partial=False, image_size=None)
    assert "preprocess" in origin.assumed
    if published == "ViT_L_16_Weights.IMAGENET1K_SWAG_LINEAR_V1":
        return  # the same shapes as others with other pixels: that it is assumed has been said
    preprocess = Preprocess(size=origin.config.image_size, **origin.preprocess)
    assert preprocess.size == (transforms.crop_size[0],) * 2
    assert preprocess.before_crop == (transforms.resize_size[0],) * 2
    assert preprocess.interpolation == transforms.interpolation.value
    assert (preprocess.mean, preprocess.std) == (tuple(transforms.mean), tuple(transforms.std))
