import dataclasses
import json
import math
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refusals import refused
from tiny import configs, tiny
from vitkit.errors import VitkitError
from vitkit.model import ViTConfig, config_for, list_models
from vitkit.model.names import VARIANTS

# Table 1 of arXiv 2010.11929; Ti and S of arXiv 2106.10270: layers, hidden size, MLP size, heads.
PAPER = {
    "micro": (4, 128, 512, 4),  # vitkit's own
    "tiny": (12, 192, 768, 3),
    "small": (12, 384, 1536, 6),
    "base": (12, 768, 3072, 12),
    "large": (24, 1024, 4096, 16),
    "huge": (32, 1280, 5120, 16),
}


def test_the_variants_are_the_papers_table() -> None:
    for size, row in PAPER.items():
        config = config_for(f"vit_{size}_patch16_224")
        assert (config.layers, config.hidden_size, config.mlp_size, config.heads) == VARIANTS[size] == row


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("vit_huge_patch14_224_in21k", {}, {"patch_size": (14, 14), "num_classes": 21843, "representation_size": 1280}),
        ("vit_large_patch16_384", {}, {"image_size": (384, 384), "num_classes": 1000, "hidden_size": 1024}),
        ("vit_small_patch32_224_gap", {}, {"pool": "gap", "class_token": False, "tokens": 49}),
        ("deit_tiny_distilled_patch16_224", {}, {"distill_token": True, "distill_head": True, "tokens": 198}),
        ("vit_micro_patch4_16", {}, {"image_size": (16, 16), "patches": 16, "tokens": 17, "head_size": 32}),
        ("vit_base_patch16_224_in21k", {"num_classes": 5}, {"num_classes": 5}),
        ("vit_base_patch16_224_in21k", {"has_logits": False}, {"representation_size": None}),
        ("vit_base_patch16_224", {"has_logits": True, "hidden_size": 96}, {"representation_size": 96}),
        ("vit_base_patch16_224", {"mlp_ratio": 2.5, "hidden_size": 96}, {"mlp_size": 240}),
        ("vit_base_patch16_224", {"distilled": True}, {"distill_token": True, "distill_head": True}),
        ("deit_base_distilled_patch16_224", {"distilled": False}, {"distill_token": False, "distill_head": False}),
    ],
)
def test_a_name_and_options_stand_for_a_configuration(
    name: str, options: dict[str, Any], expected: dict[str, Any]
) -> None:
    config = config_for(name, **options)
    assert {field: getattr(config, field) for field in expected} == expected


def test_every_listed_name_is_unique_and_builds_a_configuration() -> None:
    names = list_models()
    assert len(set(names)) == len(names)
    assert ViTConfig() == config_for("vit_base_patch16_224")
    for name in names:
        config = config_for(name)
        assert name.endswith("_in21k") == (config.num_classes == 21843) == (config.representation_size is not None)
        assert name.endswith("_gap") == (config.pool == "gap")
        assert ("distilled" in name) == config.distill_token == config.distill_head


def test_a_pattern_or_a_part_of_the_name_filters_the_list() -> None:
    assert list_models("*small_distilled*_384") == ["deit_small_distilled_patch16_384"]
    assert list_models("vit_bas?_patch8_384") == ["vit_base_patch8_384"]
    assert sorted(list_models("deit_small_p")) == ["deit_small_patch16_224", "deit_small_patch16_384"]
    assert sorted(list_models("*")) == sorted(list_models("")) == sorted(list_models())
    assert list_models("resnet") == []


def test_an_unknown_name_is_refused_with_a_suggestion() -> None:
    for wrong, suggested in (
        ("vit_bse_patch16_224", "vit_base_patch16_224"),
        ("deit_base_patch16_224_in21k", "vit_base_patch16_224_in21k"),
        ("zebra", "unknown"),
    ):
        with refused("model.name-unknown", repr(wrong), suggested):
            config_for(wrong)


def test_a_new_hidden_size_keeps_the_mlps_ratio_and_the_representation_layer() -> None:
    config = config_for("vit_base_patch16_224_in21k", hidden_size=192)
    assert (config.mlp_size, config.representation_size) == (768, 192)
    config = tiny(representation_size=5).replace(hidden_size=64)
    assert (config.mlp_size, config.representation_size) == (96, 5), "5 was nobody's proportion"
    config = tiny().replace(hidden_size=64, mlp_size=10)
    assert config.mlp_size == 10


@given(hidden_size=st.integers(1, 2000), mlp_size=st.integers(1, 8000), times=st.integers(1, 4))
@settings(max_examples=50)
def test_a_multiple_of_the_hidden_size_is_that_multiple_of_the_mlp(hidden_size: int, mlp_size: int, times: int) -> None:
    config = tiny(hidden_size=hidden_size, heads=1, mlp_size=mlp_size, position="none")
    assert config.replace(hidden_size=times * hidden_size).mlp_size == times * mlp_size


@given(config=configs(), name=st.sampled_from([field.name for field in dataclasses.fields(ViTConfig)]))
@settings(max_examples=50)
def test_replacing_a_field_by_its_own_value_changes_nothing(config: ViTConfig, name: str) -> None:
    assert config.replace(**{name: getattr(config, name)}) == config


def test_replace_changes_the_named_fields_alone_and_a_size_may_be_a_number() -> None:
    config = tiny()
    changed = config.replace(dropout=0.3, image_size=8, patch_size=[2, 4])
    new = {"dropout": 0.3, "image_size": (8, 8), "patch_size": (2, 4)}
    assert dataclasses.asdict(changed) == dataclasses.asdict(config) | new
    assert config == tiny(), "the original is left as it was"


def test_relative_positions_move_to_every_layer_and_back() -> None:
    relative = tiny().replace(position="relative")
    assert relative.position_at == "every_layer"
    assert relative.replace(position="learned_1d") == tiny()
    assert tiny().replace(position="relative", position_at="shared").position_at == "shared"


def test_an_unknown_option_is_refused_with_a_suggestion() -> None:
    for refuse in (
        lambda: config_for("vit_tiny_patch16_224", hiden_size=4),
        lambda: tiny().replace(hiden_size=4),
        lambda: ViTConfig.from_dict({"hiden_size": 4}),
    ):
        with refused("model.option-unknown", "did you mean hidden_size"):
            refuse()
    with refused("model.option-unknown", "mlp_ratio"):
        ViTConfig.from_dict({"mlp_ratio": 4})


SIZES = ("in_channels", "layers", "hidden_size", "heads", "mlp_size")
RATES = ("dropout", "attention_dropout", "position_dropout", "drop_path")
NO_PAIR = (0, -4, 12.0, "12", True, None, (12,), (12, 16, 3), (12, 0), (12, -4), (12, 4.0), (True, 12), [])
WRONG_TYPES = [
    *product((*SIZES, "num_classes"), (4.0, "4", True, None, math.nan)),
    *product(("distill_token", "distill_head", "patch_norm", "qkv_bias"), (1, 0, "False", None)),
    *product(("norm_eps", *RATES), ("0.1", True, None, (0.1,))),
    *product(("pool", "position", "position_at", "norm", "gelu", "init"), ("nonsense", None, 1, ["token"], "")),
    *product(("image_size", "patch_size"), NO_PAIR),
    *product(["representation_size"], (0, -1, 4.0, "4", True)),
    *product(["qk_scale"], ("0.1", True, math.nan, math.inf)),
]
WRONG_VALUES = [
    *product(SIZES, (0, -4)),
    ("num_classes", -1),
    *product(RATES, (-0.1, 1.0, 1, 1.5, math.nan, math.inf)),
    *product(["norm_eps"], (0.0, 0, -1e-6, math.nan, math.inf)),
]


@pytest.mark.parametrize("name", sorted({name for name, _ in WRONG_TYPES + WRONG_VALUES}))
def test_a_wrong_value_is_refused_by_the_name_of_its_field(name: str) -> None:
    for value in (value for own, value in WRONG_TYPES + WRONG_VALUES if own == name):
        with pytest.raises(VitkitError) as caught:
            tiny(**{name: value})
        assert str(caught.value).startswith(name) and str(value) in str(caught.value)


INCOMPATIBLE, INDIVISIBLE, INVALID = "model.fields-incompatible", "model.size-not-divisible", "model.value-invalid"
WRONG, TOO_LARGE = "text.value-wrong", "model.size-too-large"
OF_33: dict[str, Any] = {"hidden_size": 33, "heads": 3}
OF_LAYERS = {"position": "relative", "position_at": "shared"}


@pytest.mark.parametrize(
    ("fields", "code", "named"),
    [
        ({"hidden_size": 30, "heads": 4}, INDIVISIBLE, "hidden_size 30"),
        ({"image_size": (12, 15)}, INDIVISIBLE, "12x15"),
        ({"image_size": (13, 16)}, INDIVISIBLE, "13x16"),
        ({"stem": (), "image_size": 40, "patch_size": 3}, INDIVISIBLE, "10x10"),
        ({**OF_33, "position": "learned_2d"}, INDIVISIBLE, "learned_2d"),
        ({**OF_33, "position": "sincos_1d"}, INDIVISIBLE, "sincos_1d"),
        ({"hidden_size": 34, "heads": 2, "position": "sincos_2d"}, INDIVISIBLE, "sincos_2d"),
        ({"distill_head": True}, INCOMPATIBLE, "distill_token"),
        ({"distill_token": True, "pool": "gap"}, INCOMPATIBLE, "gap"),
        ({"distill_token": True, "representation_size": 8}, INCOMPATIBLE, "representation_size"),
        ({"class_token": False}, INCOMPATIBLE, "class_token"),
        ({"fc_norm": True, "norm": "post"}, INCOMPATIBLE, "fc_norm"),
        ({"fc_norm": True, "pool": "token+gap"}, INCOMPATIBLE, "fc_norm"),
        ({"position": "relative"}, INCOMPATIBLE, "position_at"),
        ({"prefix_positions": False, "position": "sincos_1d"}, INCOMPATIBLE, "prefix_positions"),
        ({"conv_layers": (2,)}, INCOMPATIBLE, "last layer"),
        ({"conv_layers": (0,), **OF_LAYERS}, INCOMPATIBLE, "conv"),
        ({"conv_layers": (3,)}, INVALID, "conv_layers"),
        ({"stem": (1, 0)}, INVALID, "stem"),
        ({"stem": (1, 1, 1, 1, 1)}, INVALID, "stem"),
        ({"registers": -1}, INVALID, "registers"),
        ({"attention": "axial"}, INCOMPATIBLE, "layers"),
        ({"attention": "axial", "layers": 2, "conv_layers": (0,)}, INCOMPATIBLE, "conv_layers"),
        ({"attention": "axial", "layers": 2, "global_layers": (0,)}, INCOMPATIBLE, "global_layers"),
        ({"attention": "window", **OF_LAYERS}, INCOMPATIBLE, "relative"),
        ({"attention": "window", "global_layers": (9,)}, INVALID, "global_layers"),
        ({"attention": "window", "window_size": 0}, INVALID, "window_size"),
        ({"window_size": (2, 2)}, INCOMPATIBLE, "window_size"),
        ({"stem_kind": "other"}, WRONG, "stem_kind"),
        ({"attention": "windows"}, WRONG, "attention"),
        ({"layers": 1001}, TOO_LARGE, "layers"),
        ({"hidden_size": 2**25, "heads": 1}, TOO_LARGE, "hidden_size"),
        ({"image_size": 2**20 + 16}, TOO_LARGE, "image_size"),
    ],
)
def test_fields_of_which_no_model_can_be_are_refused_by_name(fields: dict[str, Any], code: str, named: str) -> None:
    with refused(code, named):
        tiny(**fields)


@pytest.mark.parametrize(
    ("options", "code", "named"),
    [
        ({"hidden_size": "96"}, WRONG, "hidden_size"),
        ({"mlp_ratio": "4"}, INVALID, "mlp_ratio"),
        ({"mlp_ratio": -1}, INVALID, "mlp_"),
        ({"has_logits": "False"}, INVALID, "has_logits"),
        ({"distilled": "False"}, INVALID, "distill"),
        ({"has_logits": True, "distilled": True}, INCOMPATIBLE, "representation_size"),
    ],
)
def test_a_wrong_override_is_refused_by_name(options: dict[str, Any], code: str, named: str) -> None:
    with refused(code, named):
        config_for("vit_tiny_patch16_224", **options)


@given(config=configs())
@settings(max_examples=50)
def test_a_configuration_survives_json(config: ViTConfig) -> None:
    text = json.dumps(config.to_dict())
    assert json.loads(text) == config.to_dict(), "plain JSON types, so no tuples"
    restored = ViTConfig.from_dict(json.loads(text))
    assert restored == config != config.replace(norm_eps=0.5)
    assert hash(restored) == hash(config)
    assert list(config.to_dict()) == [field.name for field in dataclasses.fields(ViTConfig)]
    assert json.dumps(restored.to_dict()) == text


def test_a_field_missing_from_a_saved_configuration_has_its_default() -> None:
    assert ViTConfig.from_dict({"layers": 3}) == ViTConfig(layers=3)
