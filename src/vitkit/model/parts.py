"""The layers of `vit` with constructors that take the arguments of timm and of widespread training scripts.

Use them in experiments or in models of your own. The names of their weights are those of the layers in `vit`.

Shapes: B images, N tokens, D features of a token.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from vitkit.model import vit
from vitkit.model.config import Pair, ViTConfig, override
from vitkit.model.layers import DropPath


def drop_path(x: Tensor, drop_prob: float = 0.0, training: bool = False, scale_by_keep: bool = True) -> Tensor:
    """Zero random samples of a batch, and scale the others: stochastic depth (arXiv 1603.09382) as a function.

    Args:
        x: a residual branch, (B, ...).
        drop_prob: the probability that a sample is dropped.
        training: False returns x unchanged.
        scale_by_keep: whether the samples that are kept are divided by 1 - drop_prob.
    """
    dropped: Tensor = DropPath(drop_prob).train(training)(x)
    return dropped if scale_by_keep or not training else dropped * (1.0 - drop_prob)


class PatchEmbed(vit.PatchEmbed):
    """Embed patches: images (B, in_chans, height, width) -> (B, N, D) (eq. 1).

    Example:
        >>> import torch
        >>> PatchEmbed(img_size=32, patch_size=8, embed_dim=64)(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 16, 64])

    Args:
        img_size: the size of the images in pixels, one number or (height, width).
        patch_size: the size of the patches.
        in_chans: the number of channels; `in_c` is understood as well.
        embed_dim: D.
        norm_layer: a norm after the projection, such as `nn.LayerNorm`; None for no norm.
        options: other fields of `ViTConfig`.

    Raises:
        VitkitError: an option is unknown, or patch_size does not divide img_size.
    """

    def __init__(
        self,
        img_size: int | Pair = 224,
        patch_size: int | Pair = 16,
        in_chans: int = 3,
        embed_dim: int = 768,
        norm_layer: Any = None,
        **options: Any,
    ) -> None:
        sizes = {"in_chans": options.pop("in_c", in_chans), "embed_dim": embed_dim, "num_heads": 1}
        super().__init__(
            override(
                ViTConfig(),
                **{"img_size": img_size, "patch_size": patch_size, "norm_layer": norm_layer, **sizes, **options},
                patch_norm=norm_layer is not None,
            )
        )


class Attention(vit.Attention):
    """Multi-head self-attention: (B, N, D) -> (B, N, D) (app. A, eqs. 5-8).

    Example:
        >>> import torch
        >>> Attention(64, num_heads=2)(torch.zeros(2, 5, 64)).shape
        torch.Size([2, 5, 64])

    Args:
        dim: D.
        num_heads: the number of heads; D must be a multiple of it.
        qkv_bias: whether the projections to q, k and v have a bias.
        options: other fields of `ViTConfig`, such as `qk_scale`, `attn_drop_ratio`, `proj_drop_ratio`.

    Raises:
        VitkitError: an option is unknown, or dim is not a multiple of num_heads.
    """

    def __init__(self, dim: int, num_heads: int = 8, qkv_bias: bool = False, **options: Any) -> None:
        super().__init__(override(ViTConfig(), embed_dim=dim, num_heads=num_heads, qkv_bias=qkv_bias, **options))


class Mlp(vit.MLP):
    """Two linear layers with a GELU between them: (B, N, D) -> (B, N, D) (sec. 3.1).

    Example:
        >>> import torch
        >>> from torch import nn
        >>> Mlp(64, 256, act_layer=nn.ReLU)(torch.zeros(2, 5, 64)).shape
        torch.Size([2, 5, 64])

    Args:
        in_features: D.
        hidden_features: the width between the layers; the default is D.
        out_features: the number of features of the result; the default is D, which a residual connection requires.
        act_layer: the activation: `nn.GELU`, `nn.ReLU`, `nn.SiLU`, `nn.Tanh` or `nn.LeakyReLU`, or a name.
        drop: the rate of dropout after each layer; `drop_ratio` is understood as well.
        options: other fields of `ViTConfig`.

    Raises:
        VitkitError: an option is unknown.
    """

    def __init__(
        self,
        in_features: int,
        hidden_features: int | None = None,
        out_features: int | None = None,
        act_layer: Any = nn.GELU,
        drop: float = 0.0,
        **options: Any,
    ) -> None:
        sizes = {"embed_dim": in_features, "num_heads": 1, "mlp_size": hidden_features or in_features}
        drop = options.pop("drop_ratio", drop)
        super().__init__(override(ViTConfig(), **sizes, act_layer=act_layer, dropout=drop, **options))
        if out_features is not None:
            self.fc2 = nn.Linear(self.fc2.in_features, out_features, bias=self.fc2.bias is not None)


class Block(vit.Block):
    """One encoder layer: (B, N, D) -> (B, N, D) (eqs. 2-3).

    Example:
        >>> import torch
        >>> Block(64, num_heads=2)(torch.zeros(2, 5, 64)).shape
        torch.Size([2, 5, 64])

    Args:
        dim: D.
        num_heads: the number of heads; D must be a multiple of it.
        mlp_ratio: the width of the MLP as a multiple of D.
        qkv_bias: whether the projections to q, k and v have a bias.
        drop_path_ratio: the rate of stochastic depth of this block; timm's `drop_path` is understood as well.
        options: other fields of `ViTConfig`, such as `drop_ratio`, `act_layer`, `norm_layer`, `init_values`.

    Raises:
        VitkitError: an option is unknown, or dim is not a multiple of num_heads.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        mlp_ratio: float = 4.0,
        qkv_bias: bool = False,
        drop_path_ratio: float = 0.0,
        **options: Any,
    ) -> None:
        sizes = {"embed_dim": dim, "num_heads": num_heads, "mlp_ratio": mlp_ratio, "qkv_bias": qkv_bias, "depth": 2}
        rate = options.pop("drop_path", drop_path_ratio)
        super().__init__(override(ViTConfig(), **sizes, drop_path=rate, **options), layer=1)
