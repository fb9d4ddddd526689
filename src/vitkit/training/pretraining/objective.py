"""Pre-training as the loop takes it: an objective without labels, and images that bring a key in their place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from vitkit.data.augment import mix_seeds
from vitkit.data.batches import BatchedImages, Images
from vitkit.training.divergence import Outcome

T = TypeVar("T")
_OF_TRAINING, _OF_VALIDATION = 1, 2  # so that no key is drawn twice


@dataclass(frozen=True)
class Filling:
    """To fill in what is hidden of each image; what is hidden, the image's key decides.

    Attributes:
        has_hits: whether there is a right and a wrong.
    """

    has_hits: bool

    takes_labels = True  # nothing is mixed

    def to(self, device: torch.device) -> Filling:  # nothing lies anywhere
        """The same."""
        return self

    def targets(self, labels: Tensor) -> Tensor:
        """Keys cannot be mixed."""
        raise NotImplementedError

    def ask(self, network: Callable[..., T], images: Tensor, labels: Tensor) -> T:
        """The figures of some images, (B,) each, or side by side; `labels` are their keys."""
        return network(images, labels)

    def loss(self, heads: Sequence[Tensor], images: Tensor, targets: Tensor) -> Tensor:
        """The mean loss of some images, ()."""
        return heads[0].mean()

    def hits(self, heads: Sequence[Tensor], targets: Tensor) -> Tensor:
        """How much of what was hidden of each image is right, (B,); (0,) where nothing can be."""
        return heads[1].detach() if self.has_hits else heads[0].new_zeros(0)

    def judge(self, answers: Tensor, labels: Tensor) -> tuple[dict[str, float], Outcome | None]:
        """The means of the figures of the validation images; of a collapse nothing tells."""
        means = answers.double().mean(dim=0).tolist()
        return dict(zip(("val_loss", "val_acc"), means, strict=False)), None


class KeyedImages(Images):
    """Images with a key in the place of the label: a function of the seed and of what is asked for.

    A training image has another key in every epoch, a validation image always the same.

    Args:
        images: whose pixels these are.
        seed: of the run.
        kind: keeps the keys of training and validation apart.
    """

    def __init__(self, images: Images, seed: int, kind: int) -> None:
        self.images, self.seed, self.kind = images, seed, kind

    @property
    def labels(self) -> Sequence[int]:
        """Of the images; nothing reads them."""
        return self.images.labels

    @property
    def paths(self) -> Sequence[str]:
        """Of the images."""
        return self.images.paths

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, key: int | tuple[int, ...]) -> tuple[Tensor, int]:
        places = key if isinstance(key, tuple) else (key,)
        return self.images[key][0], mask_key(self.seed, self.kind, *places)


def mask_key(*seeds: int) -> int:
    """A key that fits into 32 bits."""
    return mix_seeds(*seeds) % 2**32 - 2**31


def with_keys(data: BatchedImages, seed: int) -> BatchedImages:
    """The same data, whose images bring keys."""
    data.train, data.val = KeyedImages(data.train, seed, _OF_TRAINING), KeyedImages(data.val, seed, _OF_VALIDATION)
    return data


def keys_of_validation(seed: int, images: Sequence[int]) -> Tensor:
    """The keys of these validation images, (n,)."""
    return torch.tensor([mask_key(seed, _OF_VALIDATION, i) for i in images])
