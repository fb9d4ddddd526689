"""Masked patch prediction (arXiv 2010.11929, sec. 4.6 and app. B.1.2).

Half of the patch embeddings are corrupted, and the outputs of the last layer predict the colours of these patches.

Shapes: B images, N patches, D features.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.data.preprocess import Preprocess
from vitkit.errors import VitkitError
from vitkit.model.config import ViTConfig
from vitkit.model.vit import VisionTransformer
from vitkit.training.pretraining.network import (
    Corruption,
    Filled,
    colour_count,
    colours,
    corrupt,
    painted,
    patchify,
    unpatchify,
)
from vitkit.training.pretraining.options import Pretraining

_SIDES = {"colour": 1, "colour-4x4": 4}  # colours along the side of a patch


class MaskedPatchPrediction(nn.Module):
    """The [mask] embedding and the linear layer that predicts colours.

    Args:
        config: the configuration of the encoder.
        choices: the options, after `resolved`.
        preprocess: the normalisation of images, which is undone to compute their colours.

    Raises:
        VitkitError: there are too few patches, or patches cannot be divided.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, config: ViTConfig, choices: Pretraining, preprocess: Preprocess) -> None:
        super().__init__()
        assert choices.mask is not None
        self.config, self.side = config, _SIDES.get(choices.target)
        self.has_hits = self.side is not None
        self.number = round(config.patches * choices.mask)
        if not 0 < self.number < config.patches:
            raise VitkitError(
                f"--mask {choices.mask:g} corrupts {self.number} of {config.patches} patches: at least one must be "
                "corrupted and one not"
            )
        if self.side is not None and any(length % self.side for length in config.patch_size):
            p, q = config.patch_size
            raise VitkitError(f"--target {choices.target} divides patches by 4, and those of this model are {p}x{q}")
        p, q = config.patch_size
        outputs = p * q * config.in_channels if self.side is None else self.side**2 * colour_count(config.in_channels)
        self.mask_token = nn.Parameter(torch.zeros(1, 1, config.hidden_size))
        self.head = nn.Linear(config.hidden_size, outputs)
        nn.init.normal_(self.mask_token, std=0.02)
        nn.init.trunc_normal_(self.head.weight, std=0.02)
        nn.init.zeros_(self.head.bias)
        for name in ("mean", "std"):
            values = torch.tensor(getattr(preprocess, name), dtype=torch.float32).view(1, -1, 1, 1)
            self.register_buffer(name, values, persistent=False)

    def predict(self, encoder: VisionTransformer, images: Tensor, corruption: Corruption) -> Tensor:
        """Return the predictions for every patch: (B, N, outputs)."""
        x = encoder.patches_of(images)  # (B, N, D)
        x = x.gather(1, corruption.source[:, :, None].expand_as(x))
        x = torch.where(corruption.masked[:, :, None], self.mask_token.to(x.dtype), x)
        x = encoder.norm(encoder.encode(encoder.place(x)))[:, self.config.prefix_tokens :]
        return self.head(x).float()

    def figures(self, encoder: VisionTransformer, images: Tensor, keys: Tensor) -> tuple[Tensor, ...]:
        """Return the mean loss over the corrupted patches of each image, and the part of right colours, (B,) each."""
        corruption = corrupt(keys, self.config.patches, self.number)
        predicted = self.predict(encoder, images, corruption)
        places = corruption.corrupted.nonzero()[:, 1].view(len(images), self.number)  # equally many for each image

        def of_corrupted(values: Tensor) -> Tensor:
            """Select the values of the corrupted patches: (B, N, ...) -> (B, number, ...)."""
            index = places.view(*places.shape, *[1] * (values.ndim - 2))
            return values.gather(1, index.expand(-1, -1, *values.shape[2:]))

        if self.side is None:
            error = predicted - patchify(images.float(), self.config.patch_size)
            return (of_corrupted(error).square().mean(dim=(1, 2)),)
        pixels = images.float() * self.std + self.mean
        truth = of_corrupted(colours(pixels, self.config.patch_size, self.side))  # (B, number, side * side)
        shape = (len(images), self.number, self.side**2, -1)
        logits = of_corrupted(predicted).reshape(shape)  # (B, number, side * side, colours)
        losses = F.cross_entropy(logits.permute(0, 3, 1, 2), truth, reduction="none")  # (B, number, side * side)
        right = logits.argmax(dim=3) == truth
        return losses.mean(dim=(1, 2)), right.float().mean(dim=(1, 2))

    def fill(self, encoder: VisionTransformer, images: Tensor, keys: Tensor) -> Filled:
        """Return the images with their corrupted patches replaced by the predictions."""
        corruption = corrupt(keys, self.config.patches, self.number)
        patch, size = self.config.patch_size, self.config.image_size
        predicted = self.predict(encoder, images, corruption)  # (B, N, outputs)
        if self.side is not None:
            numbers = predicted.reshape(*predicted.shape[:2], self.side**2, -1).argmax(dim=3)  # (B, N, side * side)
            pixels = painted(numbers, self.config.in_channels, patch, self.side, size)
            predicted = patchify((pixels - self.mean) / self.std, patch)
        whole = torch.where(corruption.corrupted[:, :, None], predicted, patchify(images.float(), patch))
        return Filled(unpatchify(whole, patch, size), corruption.corrupted)
