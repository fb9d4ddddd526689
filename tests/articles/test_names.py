"""The names that articles and their scripts use: they work here, or the answer says what to write instead."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import timm.layers
import torch
from torch import nn

import vitkit
from refusals import refused
from vitkit import Attention, Block, Mlp, PatchEmbed, VisionTransformer, create_model, export, load
from vitkit.model import ViTConfig
from vitkit.verbs import open_model

SMALL: dict[str, Any] = {"img_size": 32, "patch_size": 8, "embed_dim": 64, "depth": 2, "num_heads": 2, "num_classes": 5}


def fill(module: nn.Module) -> nn.Module:
    """Random values for all parameters, the same for modules of the same names."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for _, parameter in sorted(module.named_parameters()):
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return module.eval()


def test_a_configuration_and_other_values_go_together() -> None:
    with torch.device("meta"):
        assert VisionTransformer().config == ViTConfig(), "the base model of the paper"
    config = ViTConfig(image_size=(32, 32), patch_size=(8, 8), hidden_size=64, heads=2, layers=2, mlp_size=128)
    assert VisionTransformer(config, num_classes=7).config == config.replace(num_classes=7)
    assert VisionTransformer(config).config is config
    assert vitkit.Preprocess(size=224) == vitkit.Preprocess(size=(224, 224))
    assert vitkit.info("vit_tiny_patch16_224", image_size=384).to_dict()["config"]["image_size"] == [384, 384]
    with torch.device("meta"):  # the name of a model is a function
        model = vitkit.deit_tiny_distilled_patch16_224(num_classes=5, has_logits=False)
        assert model.config == create_model("deit_tiny_distilled_patch16_224", 5, has_logits=False).config
    with pytest.raises(AttributeError, match="module 'vitkit' has no attribute 'vit_nothing'"):
        vitkit.vit_nothing  # noqa: B018


def test_the_attributes_of_scripts() -> None:
    model = VisionTransformer(**SMALL, distilled=True)
    assert (model.embed_dim, model.num_features, model.num_tokens, model.num_prefix_tokens) == (64, 64, 2, 2)
    assert (model.num_classes, model.has_logits) == (5, False)
    assert VisionTransformer(**SMALL, representation_size=16).has_logits
    embed = model.patch_embed
    assert (embed.num_patches, embed.grid_size, embed.img_size, embed.patch_size) == (16, (4, 4), (32, 32), (8, 8))
    assert model.pos_embed.shape == (1, embed.num_patches + model.num_tokens, model.embed_dim)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_torchscript_and_what_cannot_be_a_layer_are_refused() -> None:
    with refused("model.torchscript-unsupported", "torch.export.export"):
        torch.jit.script(VisionTransformer(**SMALL))
    with refused("text.value-wrong", "torchscript"):
        export("vit_micro_patch8_16", to="torchscript")
    with refused("model.value-invalid", "224"):
        VisionTransformer(224)  # type: ignore[arg-type]
    with refused("model.size-not-divisible", "65"):
        Attention(65, num_heads=2)
    with refused("model.size-not-divisible", "16"):
        PatchEmbed(8, 16)
    with refused("model.option-unknown", "colour"):
        Block(64, 2, colour="red")


def test_the_mlp_is_that_of_timm() -> None:
    for act in (nn.GELU, nn.ReLU, nn.SiLU, nn.Tanh, nn.LeakyReLU, partial(nn.GELU, approximate="tanh")):
        sizes = {"hidden_features": 128, "out_features": 24, "act_layer": act}
        ours, reference = Mlp(64, **sizes), timm.layers.Mlp(64, **sizes)
        reference.load_state_dict(fill(ours).state_dict())
        tokens = torch.randn(2, 5, 64, generator=torch.Generator().manual_seed(1))
        torch.testing.assert_close(ours(tokens), reference(tokens), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "fields"),
    [
        ({"act_layer": nn.GELU}, {}),
        ({"act_layer": partial(nn.GELU, approximate="tanh")}, {"gelu": "tanh"}),
        ({"act_layer": "gelu_tanh"}, {"gelu": "tanh"}),
        ({"act_layer": "quick_gelu"}, {"gelu": "quick"}),
        ({"act_layer": partial(nn.ReLU, inplace=True)}, {"activation": "relu"}),
        ({"act_layer": nn.SiLU}, {"activation": "silu"}),
        ({"act_layer": "swish"}, {"activation": "silu"}),
        ({"act_layer": timm.layers.GELUTanh}, {"gelu": "tanh"}),
        ({"norm_layer": "layernorm"}, {}),
        ({"norm_layer": nn.LayerNorm}, {"norm_eps": 1e-5}),
        ({"norm_layer": timm.layers.LayerNorm}, {}),
        ({"norm_layer": nn.RMSNorm}, {"norm_kind": "rms", "norm_eps": 2.0**-23}),
        ({"embed_layer": PatchEmbed}, {}),
        ({"embed_layer": timm.layers.PatchEmbed}, {}),
    ],
)
def test_classes_of_layers_are_understood(options: dict[str, Any], fields: dict[str, Any]) -> None:
    assert ViTConfig().replace(**options) == ViTConfig().replace(**fields)


def own(name: str, base: type) -> type:
    """A class of the user's under the name of a class of torch or timm."""
    return type(name, (base,), {"__module__": "test_names"})


@pytest.mark.parametrize(
    ("options", "code", "named"),
    [
        ({"embed_dimension": 64}, "model.option-unknown", "embed_dimension"),
        ({"act_layer": nn.Hardswish}, "model.option-unsupported", "Hardswish"),
        ({"act_layer": nn.GELU(approximate="tanh")}, "model.option-unsupported", "GELU"),
        ({"act_layer": partial(nn.LeakyReLU, negative_slope=1)}, "model.option-unsupported", "negative_slope"),
        ({"norm_layer": own("LayerNorm", nn.LayerNorm)}, "model.option-unsupported", "test_names.LayerNorm"),
        ({"act_layer": nn.ReLU, "activation": "silu"}, "model.option-repeated", "activation"),
    ],
)
def test_models_that_cannot_be_are_refused(options: dict[str, Any], code: str, named: str) -> None:
    with refused(code, named):
        VisionTransformer(**options)


def test_another_activation_is_computed_alike_everywhere(tmp_path: Path) -> None:
    model = fill(VisionTransformer(**SMALL, activation="silu"))
    classifier = vitkit.Classifier(model, tuple("abcde"), vitkit.Preprocess(size=32))
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    expected = model(images).softmax(dim=1)
    classifier.save(tmp_path / "model")
    export(tmp_path / "model", out=tmp_path / "model.xml")
    optimized = classifier.use("eager", "float32", plan="plain")
    for other in (optimized, load(tmp_path / "model"), open_model(tmp_path / "model.xml", print)):
        torch.testing.assert_close(other.probabilities(images), expected, rtol=1e-4, atol=1e-5)
    with refused("weights.layout-unsuitable", "activation"):
        vitkit.convert(tmp_path / "model", tmp_path / "timm", to="timm")


@pytest.mark.parametrize("name", ["resnetv2_18", "vgg11"])
def test_a_head_that_is_a_convolution_is_a_linear_layer(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """BiT's ResNets (arXiv 1912.11370) are the paper's CNNs."""
    monkeypatch.setitem(timm.models.vgg.cfgs, "vgg11", [8, "M"] * 5)  # of 129 million weights it has 18
    model = create_model(f"timm:{name}", 5, image_size=64).eval()
    with torch.device("meta"):
        reference = timm.create_model(name, num_classes=5).eval()
    reference.load_state_dict(model.network.state_dict(), assign=True)
    images = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(model(images), reference(images), rtol=1e-4, atol=1e-5)
    assert isinstance(model.head, nn.Linear)
    torch.testing.assert_close(model.forward_head(model.forward_features(images)), model(images))
