"""The training images that several weights are tried on before one of them is chosen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vitkit.data.splits import in_proportion
from vitkit.data.table import ImageTable
from vitkit.errors import VitkitError

PARTS = 5
FEWEST, MOST = 20, 5_000  # images; the standard error of an accuracy of 90 % is 0.4 % with the most
LEAST = 40  # images, or two a class: of fewer a candidate is not measured


@dataclass(frozen=True)
class Judges:
    """The images that the candidates are measured on.

    Attributes:
        table: of training images, in an order of which every beginning has the classes in their proportions.
        groups: a number for each image, the same for those that stay in one part.
        seed: of the order and of the parts.
    """

    table: ImageTable
    groups: tuple[int, ...]
    seed: int

    @classmethod
    def of(cls, table: ImageTable, groups: Sequence[int], seed: int) -> Judges:
        """Of the training images among these, `MOST` of them at most.

        Raises:
            VitkitError: they are too few to choose by.
        """
        trained = [i for i, split in enumerate(table.splits) if split == "train"]
        drawn = [trained[i] for i in np.random.default_rng(seed).permutation(len(trained))]
        order = in_proportion(drawn, table.labels)[:MOST]
        found = cls(table.take(order), tuple(groups[i] for i in order), seed)
        if len(order) < FEWEST or found.parts(len(order)) < 2:
            raise VitkitError(
                f"{len(order)} training images are too few to choose weights by: it takes {FEWEST} at least, and two "
                "of some class; name one of the weights"
            )
        return found

    @property
    def least(self) -> int:
        """Images without which a candidate counts as not measured."""
        return min(len(self.table), max(LEAST, 2 * len(self.table.classes)))

    def parts(self, count: int) -> int:
        """Of a cross-validation of the first images: PARTS, or as many groups as the largest class has."""
        pairs = {(label, self.groups[i]) for i in range(count) for label in self.table.classes_of(i)}
        return min(PARTS, max(Counter(label for label, _ in pairs).values(), default=0))

    def targets(self, count: int) -> Tensor:
        """Labels (n,) of the first images, or 0 and 1 of each class (n, K)."""
        table = self.table
        labels = torch.tensor(table.labels[:count])
        return torch.tensor(table.set_targets())[labels] if table.is_multi else labels
