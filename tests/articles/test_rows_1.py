"""The rows of docs/articles.md on the model in PyTorch; the oracle is the model as articles write it."""

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

sys.path.append(str(Path(__file__).parent / "scripts"))
import vit_model

from vitkit.model import drop_path

TOKENS = torch.randn(2, 5, 64, generator=torch.Generator().manual_seed(1))
IMAGES = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))


def rates(module: nn.Module) -> dict[str, float]:
    """Of dropout and stochastic depth, by the names that articles give their places."""
    names = ("rate", "p", "drop_prob")  # of the attribute here, in torch, and in the article
    found = [(name, getattr(own, key, 0)) for name, own in module.named_modules() for key in names]
    return {name.rstrip("12"): rate for name, rate in found if rate}


def article(**options: Any) -> nn.Module:
    return vit_model.VisionTransformer(**{"img_size": 32, "patch_size": 8, "depth": 2, **options})


SAME: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "1.1": (vit_model.PatchEmbed, torch.randn(1, 3, 224, 224)),
    "1.2": (lambda: vit_model.PatchEmbed(32, 8, 3, 64, nn.LayerNorm), IMAGES),
    "1.4": (lambda: vit_model.Attention(64, 2, True, None, 0.1, 0.1), TOKENS),
    "1.5": (lambda: vit_model.Attention(64, 2, qk_scale=0.5), TOKENS),
    "1.6": (lambda: vit_model.Mlp(64, 256, drop=0.1), TOKENS),
    "1.8": (lambda: vit_model.Block(64, 2, qkv_bias=True, drop_path_ratio=0.1), TOKENS),
    "1.10": (lambda: article(embed_dim=64, num_heads=2, num_classes=5), IMAGES),
    "1.16": (lambda: article(representation_size=768), IMAGES),
    "1.17": (lambda: article(distilled=True), IMAGES),
    "1.21": (lambda: article(act_layer=nn.ReLU), IMAGES),
    "1.23": (lambda: article(drop_ratio=0.1, attn_drop_ratio=0.2), IMAGES),
}


@pytest.mark.parametrize("number", SAME)
def test_it_computes_what_the_article_does(row: Any, number: str) -> None:
    """The same names of parameters, and with the same values the same outputs."""
    make, x = SAME[number]
    theirs = make()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.normal_(std=0.1, generator=torch.Generator().manual_seed(parameter.numel()))
    with torch.device("meta"):
        ours = row().value
    assert rates(ours) == rates(theirs)
    ours.load_state_dict(theirs.state_dict(), assign=True)
    torch.testing.assert_close(ours.eval()(x), theirs.eval()(x), rtol=1e-4, atol=1e-5)


# The published numbers of parameters.
NAMED: dict[str, tuple[str, int, dict[str, Any]]] = {
    "1.27": ("vit_base_patch16_224", 86_567_656, {}),
    "1.28": ("vit_base_patch16_224_in21k", 103_186_515, {}),
    "1.29": ("vit_base_patch16_224_in21k", 85_798_656 + 5 * 769, {"num_classes": 5, "has_logits": False}),
    "1.30": ("vit_base_patch32_224", 88_224_232, {}),
    "1.31": ("vit_base_patch32_224_in21k", 104_843_091, {}),
    "1.32": ("vit_large_patch16_224", 304_326_632, {}),
    "1.33": ("vit_large_patch16_224_in21k", 326_740_307, {}),
    "1.34": ("vit_large_patch32_224_in21k", 328_949_075, {}),
    "1.35": ("vit_huge_patch14_224_in21k", 660_385_363, {}),
}


@pytest.mark.parametrize("number", NAMED)
def test_it_has_the_tensors_of_the_articles_model_of_this_name(row: Any, number: str) -> None:
    name, parameters, options = NAMED[number]
    with torch.device("meta"):
        ours, theirs = row().value, getattr(vit_model, name)(**options)
    assert sum(parameter.numel() for parameter in ours.parameters()) == parameters
    assert {key: tensor.shape for key, tensor in ours.state_dict().items()} == {
        key: tensor.shape for key, tensor in theirs.state_dict().items()
    }


EMBED, BLOCK = 3 * 64 * 64 + 64 + 64 + 17 * 64, 4 * 64 + 4 * 64 * 64 + 4 * 64 + 2 * 4 * 64 * 64 + 5 * 64
HOLDS: dict[str, Callable[[Any], Any]] = {
    "1.9": lambda done: done.value == pytest.approx([0, 0.05, 0.1, 0.15, 0.2]),
    "1.13": lambda done: torch.allclose(done.names["model"].head(done.value[:, 0]), logits(done), atol=1e-5),
    "1.15": lambda done: done.value.shape == (2, 768),
    "1.18": lambda done: done.value[0].shape == (2, 1000) and not torch.equal(*done.value),
    "1.19": lambda done: is_hybrid(done.value) and done.value.head.out_features == 5,
    "1.20": lambda done: sum(parameter.numel() for parameter in done.value.parameters()) == 98_659_112,  # R50+ViT-B/16
    "1.22": lambda done: {own.eps for own in done.value.modules() if isinstance(own, nn.LayerNorm)} == {1e-5},
    "1.24": lambda done: done.value.config.pool == "gap",
    "1.25": lambda done: done.value.pos_embed is None,
    "1.26": lambda done: done.value is True,
    "1.36": lambda done: done.value == EMBED + 2 * BLOCK + 2 * 64 + 3 * 65,
    "1.37": lambda done: "86,567,656" in done.out and "17.564" in done.out,  # by an independent implementation
    "1.38": lambda done: re.search(r"^vit_large_patch16_224 +24 +1024 +4096 +16 .*304,326,632$", done.out, re.M),
    "1.39": lambda done: torch.equal(done.value.model(done.names["images"]), logits(done)),
    "1.40": lambda done: done.value.model.patch_embed.grid_size == (6, 6),
    "1.41": lambda done: "timm: 32 of 32 tensors loaded (100 %)" in done.out,
    "1.42": lambda done: re.search(r"^attention, per head +1x17x17 ", done.out, re.M),
    "1.43": lambda done: torch.allclose(done.value.positions().flatten()[64:96], torch.sin(FREQUENCIES), atol=1e-5),
    "1.44": lambda done: done.value.embed(torch.randn(2, 3, 8, 8)).shape == (2, 8 * 8 + 1, 64),
    "1.45": lambda done: done.value.config.norm == "post",
    "1.46": lambda done: torch.equal(torch.cat(done.value), done.names["model"].blocks[0].attn.qkv.weight),
    "1.47": lambda done: done.value.config.attention == "axial",
    "1.48": lambda done: (done.value.config.attention, done.value.config.window_size) == ("window", (2, 2)),
    "1.49": lambda done: done.value.config.conv_layers == (0, 2),
    "1.50": lambda done: done.value.config.projection == "conv",
    "1.51": lambda done: done.value.config.mlp_kind == "conv",
    "1.52": lambda done: [f"{size:.1f}" for size in done.value] == ["393.6", "83.2", "13.4"],
    "1.53": lambda done: (
        done.json["gmacs"] == pytest.approx(16.864 - 0.015 + 0.715, abs=1e-3)
    ),  # thop's, and the page's
}
FREQUENCIES = 10_000 ** (torch.arange(32) / -32)  # those of the first patch, which is the token at place 1


def logits(done: Any) -> Tensor:
    return done.names["model"](done.names["images"])


def is_hybrid(model: Any) -> bool:
    """Whether patches are of a ResNet's feature map, which begins with 7x7 pixels."""
    kernel = model.patch_embed.backbone.stem.conv.weight
    return kernel.shape[-2:] == (7, 7) and model.patch_embed.proj.in_channels == kernel.shape[0]


@pytest.mark.parametrize("number", HOLDS)
def test_it_holds(row: Any, number: str) -> None:
    is_large = number in ("1.9", "1.15", "1.20", "1.22", "1.24", "1.25", "1.52")  # and looked at from outside
    with torch.device("meta" if is_large else "cpu"):
        assert HOLDS[number](row())


def test_1_3_class_token_and_positions(row: Any) -> None:
    done = row()
    model, images = done.names["model"], done.names["images"]
    expected = torch.cat([model.cls_token.expand(2, -1, -1), model.patch_embed(images)], dim=1) + model.pos_embed
    torch.testing.assert_close(done.value, expected)


def test_1_7_stochastic_depth(row: Any) -> None:
    layer = row().value.train()
    torch.manual_seed(0)
    y = layer(torch.ones(4000, 3, 2))
    torch.testing.assert_close(y.unique(), torch.tensor([0, 4 / 3]))
    assert (y.flatten(1) == y[:, :1, 0]).all(), "whole samples are dropped"
    assert (y[:, 0, 0] == 0).float().mean().item() == pytest.approx(0.25, abs=0.03)
    assert drop_path(torch.ones(4000, 3, 2), 0.25, True, scale_by_keep=False).unique().tolist() == [0, 1]


def test_1_11_initial_weights(row: Any) -> None:
    torch.manual_seed(0)
    theirs, ours = article().state_dict(), row().value.state_dict()
    assert theirs.keys() == ours.keys()
    for name, tensor in theirs.items():
        if tensor.numel() > 700 and tensor.std() > 0:
            assert ours[name].std().item() == pytest.approx(tensor.std().item(), rel=0.15), name
        else:
            torch.testing.assert_close(ours[name], tensor, atol=0.1, rtol=0)


FORWARD = {"1.12": "forward", "1.14": "forward_features"}


@pytest.mark.parametrize("number", FORWARD)
def test_the_forward_pass_is_the_articles(row: Any, number: str) -> None:
    done = row()
    theirs = article(embed_dim=64, num_heads=1, num_classes=3).eval()
    theirs.load_state_dict(done.names["model"].state_dict())
    expected = getattr(theirs, FORWARD[number])(done.names["images"])
    torch.testing.assert_close(done.value, expected, rtol=1e-4, atol=1e-5)
