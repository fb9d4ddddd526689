"""Whether an exported file answers as the model does that it was made from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from vitkit.classifier import Classifier
from vitkit.data.decode import UnreadableImageError
from vitkit.errors import VitkitError
from vitkit.export.card import Card
from vitkit.export.pictures import Pictures, Progress

COSINE, AGREEMENT = 0.999, 0.995  # at least
_DRIFT = 1e-3  # of the largest logit: what float32 may differ by at most
_TIE = 1e-4  # of the spread of an image's logits: closer ones have no order that float32 could tell
_BATCH = 8


class Refused(VitkitError):  # noqa: N818  # a verdict
    """The file does not answer as the model does."""


@dataclass(frozen=True)
class Comparison:
    """How far two sets of logits of the same images are from each other.

    Attributes:
        images: how many there are.
        difference: max |logit - logit|.
        cosine: the lowest of an image's two rows of logits.
        agreement: part of the images with the same most probable class; of a multi-label model, part of the decisions
            for or against a class. Ties that float32 cannot tell apart are left out.
        drift: the difference in parts of the largest logit.
    """

    images: int
    difference: float
    cosine: float
    agreement: float
    drift: float

    def faults(self, dtype: str) -> list[str]:
        """Why a file with weights of this dtype is refused."""
        found = []
        if not self.cosine >= COSINE:
            found.append(f"cosine {self.cosine:.6f} is below {COSINE}")
        if not self.agreement >= AGREEMENT:
            found.append(f"top-1 agreement {self.agreement:.2%} is below {AGREEMENT:.1%}")
        if dtype == "float32" and not self.drift <= _DRIFT:
            found.append(f"logits differ by up to {self.difference:.2g}, {self.drift:.2%} of the largest")
        return found


def read_pictures(classifier: Classifier, pictures: Pictures) -> list[Tensor]:
    """Each picture that can be read, (C, height, width), as the classifier reads it.

    Raises:
        VitkitError: none can be read.
    """
    read = [image for picture in pictures.those if (image := _read(classifier, picture)) is not None]
    if not read:
        raise VitkitError(f"none of the {pictures.what} can be read")
    return read


def _read(classifier: Classifier, picture: Path | Image.Image) -> Tensor | None:
    if isinstance(picture, Image.Image):
        return torch.from_numpy(classifier.preprocess(picture))
    try:
        return classifier.read(picture)
    except UnreadableImageError:
        return None


def answers(classifier: Classifier, images: list[Tensor], what: str, progress: Progress | None = None) -> Tensor:
    """The logits of all images, (B, K): of the first alone, then of batches."""
    batches = [images[:1], *(images[i : i + _BATCH] for i in range(1, len(images), _BATCH))]
    rows, done = [], 0
    for batch in batches:
        rows.append(classifier.logits(torch.stack(batch)))
        done += len(batch)
        if progress is not None:
            progress(what, done, len(images))
    return torch.cat(rows)


def compare(ours: Tensor, theirs: Tensor, card: Card) -> Comparison:
    """Compare the logits (B, K) of the model with those of the file.

    Raises:
        Refused: they are not of the same shape, or not finite.
    """
    if ours.shape != theirs.shape:
        raise Refused(f"the file answers {tuple(theirs.shape)} logits for {tuple(ours.shape)}")
    if ours.isfinite().all() and not theirs.isfinite().all():
        raise Refused("the file answers infinite logits")
    difference = (ours - theirs).abs().max().item()
    return Comparison(
        images=len(ours),
        difference=difference,
        cosine=F.cosine_similarity(ours.double(), theirs.double(), dim=1).min().item(),
        agreement=_agreement(ours, theirs, card),
        drift=difference / max(ours.abs().max().item(), torch.finfo(torch.float32).tiny),
    )


def _agreement(ours: Tensor, theirs: Tensor, card: Card) -> float:
    if card.thresholds is not None:
        limits = torch.tensor(card.thresholds)
        first, second = ((logits / card.temperature).sigmoid() for logits in (ours, theirs))
        same, is_tie = (first >= limits) == (second >= limits), (first - limits).abs() < _TIE
    elif ours.shape[1] == 1:
        return 1.0
    else:
        best = ours.topk(2, dim=1).values
        spread = ours.amax(dim=1) - ours.amin(dim=1)
        same, is_tie = ours.argmax(dim=1) == theirs.argmax(dim=1), best[:, 0] - best[:, 1] < _TIE * spread
    decided = same[~is_tie]
    return decided.double().mean().item() if len(decided) else 1.0


def check_card(ours: Card, theirs: Card) -> None:
    """Whether the file says of itself what the model is.

    Raises:
        Refused: it does not.
    """
    for name in ("classes", "preprocess", "temperature", "thresholds", "dtype", "vitkit_version"):
        if getattr(ours, name) != getattr(theirs, name):
            raise Refused(f"the file says another {name} than the model has")
