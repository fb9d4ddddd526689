"""Token merging: every layer merges its most similar patches (Bolya et al., arXiv 2210.09461).

Between attention and MLP, the patches are assigned alternately to two sets. Each patch of the first set is matched with
the patch of the second set whose key is most similar. The r best matches are merged into their mean (sec. 3). In
attention, a merged token counts once for each of its patches: the logarithm of its size is added to the logits (eq. 1).
Predictions change slightly; `benchmarks/merging.py` measures by how much.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.errors import VitkitError
from vitkit.inference.backends.optimized import OptimizedModel, PreparedAttention, PreparedBlock, prepare
from vitkit.model.config import ViTConfig
from vitkit.model.variants import MERGING, check
from vitkit.model.vit import VisionTransformer


class MergingModel(nn.Module):
    """An optimised model that merges tokens: images (B, C, height, width) float32 -> logits (B, K) float32.

    Attributes:
        plain: the optimised model without merging.
        r: the number of patches that each layer merges, but at most half of the remaining ones.
    """

    def __init__(self, plain: OptimizedModel, r: int) -> None:
        super().__init__()
        self.plain, self.r = plain, r

    def forward(self, images: Tensor) -> Tensor:
        model, config = self.plain.model, self.plain.model.config
        x = model.embed(images)  # (B, N, D)
        sizes: Tensor | None = None  # (B, N), the number of patches in each token; None: one
        last = len(model.blocks) - 1
        for i, block in enumerate(model.blocks):
            x, sizes = self._layer(block, x, sizes, self.plain.reads if i == last else None)
        x = model.norm(x.float())
        if sizes is not None and config.pool != "token":  # weighted, so that the mean over tokens is one over patches
            ahead = config.prefix_tokens
            weights = sizes[:, ahead:] * (x.shape[1] - ahead) / config.patches  # (B, n)
            x = torch.cat([x[:, :ahead], x[:, ahead:] * weights.unsqueeze(2)], dim=1)
        return model.forward_head(x)

    def _layer(
        self, block: nn.Module, x: Tensor, sizes: Tensor | None, queries: int | None
    ) -> tuple[Tensor, Tensor | None]:
        """Compute eqs. 2-3 for all tokens, and merge tokens between the two equations.

        If `queries` is a number, compute only this number of first tokens, and merge none.
        """
        assert isinstance(block, PreparedBlock) and isinstance(block.attn, PreparedAttention)
        attention, keys = block.attn, list[Tensor]()
        bias = None if sizes is None else sizes.log()[:, None, None, :]  # (B, 1, 1, N): eq. 1

        def attend(x: Tensor, total: Tensor | None) -> Tensor:
            q, k, v = attention.project(x, queries)
            keys.append(k.mean(dim=1, dtype=torch.float32))  # (B, N, D_h)
            residual = None if total is None else total[:, :queries]  # (B, n, D)
            return attention.finish(attention.attend(q, k, v, bias), residual)

        x = block.spread(x, attend, queries)
        if queries is None:
            x, sizes = merge_tokens(x, keys[0], sizes, self.r, self.plain.model.config)
        return block.mixed(x), sizes


def merge(model: VisionTransformer, r: int, dtype: torch.dtype = torch.float32, device: str = "cpu") -> MergingModel:
    """Return an optimised copy of the model in which every layer merges `r` patches; with 0 none are merged.

    Args:
        model: the model, which is not changed; later changes do not affect the copy.
        r: the number of patches, 0 or more.
        dtype: the dtype in which the layers compute.
        device: the device to compute on.

    Raises:
        VitkitError: r is negative, or the model depends on the position of each patch.
    """
    if r < 0:
        raise VitkitError(f"the number of tokens to merge in each layer must be 0 or more, not {r}")
    config = model.config
    if config.pool == "map":
        raise VitkitError("--merge does not support pool 'map', whose attention would count a merged patch only once")
    check(config, MERGING)
    if config.positions_in_layers:
        raise VitkitError("tokens of this model cannot be merged: positions act in every layer")
    if config.conv_layers or config.projection == "conv" or config.mlp_kind == "conv":
        raise VitkitError("tokens of this model cannot be merged: it has convolutional layers")
    return MergingModel(prepare(model, dtype, device), r)


def merge_tokens(
    x: Tensor, metric: Tensor, sizes: Tensor | None, r: int, config: ViTConfig
) -> tuple[Tensor, Tensor | None]:
    """Merge the r most similar pairs of patches; prefix tokens stay unchanged.

    Args:
        x: tokens (B, N, D).
        metric: (B, N, d); similarity is the cosine of these vectors.
        sizes: (B, N) float32, the number of patches in each token; None for one each.
        r: the number of patches to remove; at most half of them.
        config: the configuration, for the number of prefix tokens.

    Returns:
        Tokens (B, N - r, D) and their sizes. Prefix tokens come first, then the unmerged patches of the first set, and
        all patches of the second set.
    """
    (B, N, D), ahead = x.shape, config.prefix_tokens
    r = min(r, (N - ahead) // 2)
    if r == 0:
        return x, sizes
    # The sets alternate over the whole sequence, starting with its first token, as in the authors' code.
    a, b = slice(ahead + ahead % 2, None, 2), slice(ahead + 1 - ahead % 2, None, 2)
    left, src, dst = _match(metric[:, a], metric[:, b], r)
    sizes = x.new_ones(B, N, dtype=torch.float32) if sizes is None else sizes
    going, into = sizes[:, a].gather(1, src), sizes[:, b]  # (B, r), (B, |b|)
    grown = into.scatter_add(1, dst, going)  # (B, |b|)
    share = (going / grown.gather(1, dst)).unsqueeze(2).to(x.dtype)  # (B, r, 1)
    merged = x[:, b] * (into / grown).unsqueeze(2).to(x.dtype)  # (B, |b|, D)
    merged.scatter_add_(1, dst.unsqueeze(2).expand(B, r, D), _rows(x[:, a], src) * share)
    x = torch.cat([x[:, :ahead], _rows(x[:, a], left), merged], dim=1)
    return x, torch.cat([sizes[:, :ahead], sizes[:, a].gather(1, left), grown], dim=1)


def _match(a: Tensor, b: Tensor, r: int) -> tuple[Tensor, Tensor, Tensor]:
    """Match tokens a (B, |a|, d) to tokens b (B, |b|, d), sec. 3.

    Returns:
        The indices of the tokens of a that stay, in order; of the r tokens of a that merge; and of their partners in b.
    """
    likeness = F.normalize(a, dim=-1) @ F.normalize(b, dim=-1).transpose(1, 2)  # (B, |a|, |b|)
    best, partner = likeness.max(dim=2)  # (B, |a|)
    order = best.argsort(dim=1, descending=True, stable=True)
    src = order[:, :r]
    return order[:, r:].sort(dim=1).values, src, partner.gather(1, src)


def _rows(x: Tensor, rows: Tensor) -> Tensor:
    """Select the tokens at `rows` (B, n) from tokens (B, N, D)."""
    return x.gather(1, rows.unsqueeze(2).expand(-1, -1, x.shape[2]))
