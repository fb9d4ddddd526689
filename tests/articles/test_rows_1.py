"""The rows of docs/articles.md on the model in PyTorch; the oracle is the model as articles write it."""

import math
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

import vitkit

TOKENS = torch.randn(2, 5, 64, generator=torch.Generator().manual_seed(1))
IMAGES = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
DEFAULT = {"img_size": 32, "patch_size": 8, "depth": 2}  # of the lines that name no other sizes


def assert_same(ours: nn.Module, article: nn.Module, x: Tensor) -> None:
    """The same names of parameters, and with the same values the same outputs."""
    with torch.no_grad():
        for parameter in article.parameters():
            parameter.normal_(std=0.1, generator=torch.Generator().manual_seed(parameter.numel()))
    ours.load_state_dict(article.state_dict(), assign=True)
    torch.testing.assert_close(ours.eval()(x), article.eval()(x), rtol=1e-4, atol=1e-5)


SAME: dict[str, tuple[Any, Tensor]] = {
    "1.2": (lambda: vit_model.PatchEmbed(32, 8, 3, 64, nn.LayerNorm), IMAGES),
    "1.5": (lambda: vit_model.Attention(64, 2, qk_scale=0.5), TOKENS),
    "1.6": (lambda: vit_model.Mlp(64, 256), TOKENS),
    "1.10": (lambda: vit_model.VisionTransformer(32, 8, 3, 5, 64, 2, 2), IMAGES),
    "1.16": (lambda: vit_model.VisionTransformer(**DEFAULT, representation_size=768), IMAGES),
    "1.17": (lambda: vit_model.VisionTransformer(**DEFAULT, distilled=True), IMAGES),
    "1.21": (lambda: vit_model.VisionTransformer(**DEFAULT, act_layer=nn.ReLU), IMAGES),
}


@pytest.mark.parametrize("number", SAME)
def test_it_computes_what_the_article_does(row: Any, number: str) -> None:
    article, x = SAME[number]
    with torch.device("meta"):
        ours = row().value
    assert_same(ours, article(), x)


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
        ours, article = row().value, getattr(vit_model, name)(**options)
    assert sum(parameter.numel() for parameter in ours.parameters()) == parameters
    assert {key: tensor.shape for key, tensor in ours.state_dict().items()} == {
        key: tensor.shape for key, tensor in article.state_dict().items()
    }


EMBED, BLOCK = 3 * 64 * 64 + 64 + 64 + 17 * 64, 4 * 64 + 4 * 64 * 64 + 4 * 64 + 2 * 4 * 64 * 64 + 5 * 64
HOLDS: dict[str, Callable[[Any], bool]] = {
    "1.9": lambda done: done.value == pytest.approx([0, 0.05, 0.1, 0.15, 0.2]),
    "1.15": lambda done: done.value.shape == (2, 768),
    "1.18": lambda done: done.value[0].shape == (2, 1000) and not torch.equal(*done.value),
    "1.19": lambda done: is_hybrid(done.value) and done.value.head.out_features == 5,
    "1.20": lambda done: sum(parameter.numel() for parameter in done.value.parameters()) == 98_659_112,  # R50+ViT-B/16
    "1.22": lambda done: [norm.eps for norm in norms(done.value)] == [1e-5] * 5,
    "1.26": lambda done: done.value is True,
    "1.36": lambda done: done.value == EMBED + 2 * BLOCK + 2 * 64 + 3 * 65,
    "1.37": lambda done: "86,567,656" in done.out and "17.564" in done.out,  # by an independent implementation
    "1.38": lambda done: re.search(r"^vit_large_patch16_224 +24 +1024 +4096 +16 .*304,326,632$", done.out, re.M),
    "1.39": lambda done: torch.equal(done.value.model(done.names["images"]), done.names["model"](done.names["images"])),
    "1.41": lambda done: "timm: 32 of 32 tensors loaded (100 %)" in done.out,
    "1.52": lambda done: [f"{size:.1f}" for size in done.value] == ["393.6", "83.2", "13.4"],
    "1.44": lambda done: done.value.embed(torch.randn(2, 3, 8, 8)).shape == (2, 8 * 8 + 1, 64),
}


def norms(model: nn.Module) -> list[nn.LayerNorm]:
    return [module for module in model.modules() if isinstance(module, nn.LayerNorm)]


def is_hybrid(model: Any) -> bool:
    """Whether patches are of a ResNet's feature map, which begins with 7x7 pixels."""
    kernel = model.patch_embed.backbone.stem.conv.weight
    return kernel.shape[-2:] == (7, 7) and model.patch_embed.proj.in_channels == kernel.shape[0]


@pytest.mark.parametrize("number", HOLDS)
def test_it_holds(row: Any, number: str) -> None:
    is_large = number in ("1.9", "1.15", "1.20", "1.22", "1.52")  # and looked at from outside
    with torch.device("meta" if is_large else "cpu"):
        assert HOLDS[number](row())


def test_1_1_patches(row: Any) -> None:
    embed = row().value
    assert (embed.num_patches, embed.grid_size) == (196, (14, 14))
    assert_same(embed, vit_model.PatchEmbed(), torch.randn(1, 3, 224, 224))


def test_1_3_class_token_and_positions(row: Any) -> None:
    done = row()
    model, images = done.names["model"], done.names["images"]
    patches = model.patch_embed(images)
    expected = torch.cat([model.cls_token.expand(2, -1, -1), patches], dim=1) + model.pos_embed
    torch.testing.assert_close(done.value, expected)


def test_1_4_attention(row: Any) -> None:
    ours = row().value
    assert_same(ours, vit_model.Attention(64, 2, qkv_bias=True), TOKENS)
    assert (ours.attn_drop.rate, ours.proj_drop.rate) == (0.1, 0.1)


def test_1_7_stochastic_depth(row: Any) -> None:
    layer = row().value.train()
    torch.manual_seed(0)
    y = layer(torch.ones(4000, 3, 2))
    torch.testing.assert_close(y.unique(), torch.tensor([0, 4 / 3]))
    assert (y.flatten(1) == y[:, :1, 0]).all(), "whole samples are dropped"
    assert (y[:, 0, 0] == 0).float().mean().item() == pytest.approx(0.25, abs=0.03)


def test_1_8_block(row: Any) -> None:
    block = row().value
    assert_same(block, vit_model.Block(64, 2, qkv_bias=True), TOKENS)
    assert block.drop_path1.rate == 0.1


def test_1_11_initial_weights(row: Any) -> None:
    torch.manual_seed(0)
    article, ours = vit_model.VisionTransformer(**DEFAULT).state_dict(), row().value.state_dict()
    assert article.keys() == ours.keys()
    for name, tensor in article.items():
        if tensor.numel() > 700 and tensor.std() > 0:
            assert ours[name].std().item() == pytest.approx(tensor.std().item(), rel=0.15), name
        else:
            torch.testing.assert_close(ours[name], tensor, atol=0.1, rtol=0)


FORWARD = {"1.12": "forward", "1.14": "forward_features"}


@pytest.mark.parametrize("number", FORWARD)
def test_the_forward_pass_is_the_articles(row: Any, number: str) -> None:
    done = row()
    article = vit_model.VisionTransformer(32, 8, 3, 3, 64, 2, 1).eval()
    article.load_state_dict(done.names["model"].state_dict())
    expected = getattr(article, FORWARD[number])(done.names["images"])
    torch.testing.assert_close(done.value, expected, rtol=1e-4, atol=1e-5)


def test_1_13_all_tokens(row: Any) -> None:
    done = row()
    model = done.names["model"]
    assert done.value.shape == (2, 17, 64)
    torch.testing.assert_close(model.head(done.value[:, 0]), model(done.names["images"]))
    normalised = (done.value - model.norm.bias) / model.norm.weight
    torch.testing.assert_close(normalised.mean(-1), torch.zeros(2, 17), atol=1e-5, rtol=0)


def test_1_23_dropout(row: Any) -> None:
    model = row().value
    block = model.blocks[0]
    assert (model.pos_drop.rate, block.mlp.drop2.rate, block.attn.proj_drop.rate) == (0.1, 0.1, 0.1)
    assert block.attn.attn_drop.rate == 0.2
    x = torch.ones(100, 100)
    assert (block.mlp.drop1.train()(x) == 0).float().mean().item() == pytest.approx(0.1, abs=0.02)


def test_1_24_mean_instead_of_the_class_token(row: Any) -> None:
    model = row().value.eval()
    with torch.no_grad():
        model.head.weight.normal_()
    tokens = model.forward_features(IMAGES)
    torch.testing.assert_close(model.forward_head(tokens), model.forward_head(tokens.flip(1)))  # no token stands out
    torch.testing.assert_close(model(IMAGES), model.head(model.fc_norm(tokens.mean(1))), rtol=1e-4, atol=1e-4)


def test_1_25_no_positions(row: Any) -> None:
    model = row().value.eval()
    assert model.pos_embed is None
    with torch.no_grad():
        model.head.weight.normal_(std=0.02)
    shuffled = IMAGES.unflatten(2, (4, 8)).flip(2).flatten(2, 3)  # the rows of patches in another order
    torch.testing.assert_close(model(shuffled), model(IMAGES), rtol=1e-3, atol=1e-4)


def test_1_40_another_size_of_images(row: Any, place: Path) -> None:
    model = row().value.model
    assert model.patch_embed.grid_size == (6, 6) and model.pos_embed.shape == (1, 37, 64)
    before = torch.load(place / "model.pth")["pos_embed"]
    torch.testing.assert_close(model.pos_embed[:, 0], before[:, 0])
    means = (grid[0, 1:].mean(0) for grid in (model.pos_embed, before))
    assert torch.corrcoef(torch.stack(list(means)))[0, 1] > 0.9


def test_1_42_shapes_from_layer_to_layer(row: Any) -> None:
    out = row().out
    shapes = dict(re.findall(r"^(\S[^0-9]+?) +([\dx]+) +\d+ ", out, re.MULTILINE))
    assert shapes["patch embedding"] == "4x4x64" and shapes["q, k, v"] == "17x192"
    assert (shapes["attention, per head"], shapes["MLP hidden"], shapes["classes"]) == ("1x17x17", "17x256", "3")


def test_1_43_sinusoids(row: Any) -> None:
    positions = row().value.positions().view(17, 64)  # of the class token and of 16 patches
    for place in (0, 1, 16):
        angles = [place / 10_000 ** (i / 32) for i in range(32)]
        sines = [math.sin(angle) for angle in angles] + [math.cos(angle) for angle in angles]
        torch.testing.assert_close(positions[place], torch.tensor(sines), atol=1e-5, rtol=0)


def test_1_45_post_norm(row: Any) -> None:
    model = row().value.eval()
    block = model.blocks[0]
    x = block.norm1(TOKENS + block.attn(TOKENS))
    torch.testing.assert_close(block(TOKENS), block.norm2(x + block.mlp(x)))


def test_1_46_three_linears(row: Any) -> None:
    done = row()
    attention = done.names["model"].blocks[0].attn
    x = torch.randn(2, 17, 64)
    q, k, v = (
        nn.functional.linear(x, weight, bias)
        for weight, bias in zip(done.value, attention.qkv.bias.chunk(3), strict=True)
    )
    weighted = (q @ k.transpose(1, 2) / 64**0.5).softmax(-1) @ v
    torch.testing.assert_close(attention(x), attention.proj(weighted), rtol=1e-4, atol=1e-5)


def attend(attention: nn.Module, parts: Tensor) -> Tensor:
    """Attention as the article writes it, with the same weights, among the tokens of each part (..., n, 64)."""
    article = vit_model.Attention(64, 2, qkv_bias=True).eval()
    article.load_state_dict(attention.state_dict())
    return article(parts.flatten(0, -3)).view(parts.shape)


def test_1_47_axial_attention(row: Any) -> None:
    model, x = row().value.eval(), torch.randn(2, 16, 64)
    grid = x.view(2, 4, 4, 64)
    for block, turned in zip(model.blocks, (False, True), strict=True):
        lines = grid.transpose(1, 2) if turned else grid
        expected = attend(block.attn, lines.contiguous())
        expected = (expected.transpose(1, 2) if turned else expected).reshape(2, 16, 64)
        torch.testing.assert_close(block.attn(x), expected, rtol=1e-4, atol=1e-5)


def test_1_48_windows(row: Any) -> None:
    model, x = row().value.eval(), torch.randn(2, 16, 64)
    windows = x.view(2, 2, 2, 2, 2, 64).transpose(2, 3)  # (B, rows, columns, height, width, D)
    expected = attend(model.blocks[0].attn, windows.reshape(2, 4, 4, 64)).view(windows.shape)
    expected = expected.transpose(2, 3).reshape(2, 16, 64)
    torch.testing.assert_close(model.blocks[0].attn(x), expected, rtol=1e-4, atol=1e-5)


def reach(block: nn.Module) -> list[int]:
    """The patches of a 4 x 4 grid whose output depends on the patch in its corner, by their number."""
    x = torch.randn(1, 17, 128)
    changed = x.clone()
    changed[:, 1] = torch.randn(128)
    return torch.nonzero((block(x) - block(changed))[0, 1:].abs().amax(-1) > 1e-6).flatten().tolist()


def test_1_49_interleaved_convolution(row: Any) -> None:
    blocks = row().value.eval().blocks
    assert [len(reach(block)) for block in blocks] == [4, 16, 4, 16], "the neighbours, or all"
    assert reach(blocks[0]) == [0, 1, 4, 5]


def test_1_50_convolutional_projections(row: Any) -> None:
    model = row().value.eval()
    plain = vitkit.create_model("vit_micro_patch4_16", num_classes=5)
    extra = {key for key in model.state_dict() if key not in plain.state_dict()}
    convolutions = {name for name, module in model.named_modules() if isinstance(module, nn.Conv2d)}
    assert {key.rpartition(".")[0] for key in extra} == convolutions - {"patch_embed.proj"}
    assert model(torch.randn(2, 3, 16, 16)).shape == (2, 5)


def test_1_51_convolution_in_the_mlp(row: Any) -> None:
    block = row().value.eval().blocks[0]
    x = torch.randn(1, 17, 128)
    hidden = block.mlp.fc1(x)
    grid = hidden[:, 1:].transpose(1, 2).unflatten(2, (4, 4))
    convolved = block.mlp.conv.conv(grid).flatten(2).transpose(1, 2)
    assert convolved.shape == hidden[:, 1:].shape and block.mlp.conv.conv.groups == hidden.shape[-1]
    assert len(reach(block.mlp)) == 4, "the corner and its neighbours"


def test_1_53_thops_count(row: Any) -> None:
    """The page's sum, from thop's rules: linear layers, convolutions, and four operations for an element of a norm."""
    with torch.device("meta"):
        model = vit_model.vit_base_patch16_224(num_classes=1000)
    modules = list(model.modules())
    linear = sum(m.weight.numel() * (1 if m is model.head else 197) for m in modules if isinstance(m, nn.Linear))
    norms = 4 * 197 * 768 * sum(isinstance(module, nn.LayerNorm) for module in modules)
    thop = linear + 196 * model.patch_embed.proj.weight.numel() + norms
    attention = 12 * 2 * 197**2 * 768
    assert [f"{count / 1e9:.3f}" for count in (thop, norms, attention)] == ["16.864", "0.015", "0.715"]
    assert row().json["gmacs"] == pytest.approx((thop - norms + attention) / 1e9, abs=5e-4)
