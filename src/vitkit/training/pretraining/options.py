"""What pre-training learns: every choice beyond those of a training recipe, in one dataclass."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from vitkit.errors import VitkitError
from vitkit.text.fields import Between, check_ranges, hints_of, settle_types
from vitkit.training.recipe import SharedFields

Target = Literal["auto", "normalised", "pixels", "colour", "colour-4x4"]


@dataclass(frozen=True)
class Kind:
    """One objective.

    Attributes:
        mask: the part of the patches that is hidden.
        targets: what may be predicted, the default first.
        recipe: fields of the training recipe whose default suits it.
    """

    mask: float
    targets: tuple[Target, ...]
    recipe: dict[str, Any]


_PIXELS = {"hflip": True, "color_jitter": 0.0, "drop_path": 0.0, "monitor": "val_loss", "label_smoothing": 0.0}
KINDS = {
    # arXiv 2111.06377, table 8, but for what depends on the size of the data: lr, epochs and the gradient's limit.
    "mae": Kind(
        0.75,
        ("normalised", "pixels"),
        {**_PIXELS, "crop_scale": (0.2, 1.0), "beta2": 0.95, "warmup": 0.05, "epochs": 200},
    ),
    # arXiv 2010.11929, app. B.1.2, likewise.
    "masked-patch": Kind(
        0.5,
        ("colour", "colour-4x4", "pixels"),
        {**_PIXELS, "crop_scale": (0.2, 1.0), "warmup": 0.05, "epochs": 200},
    ),
}


@dataclass(frozen=True, kw_only=True)
class Pretraining:
    """What is hidden of a picture, and what is to be said of it. A field that is None is left to the objective."""

    objective: Annotated[
        Literal["mae", "masked-patch"],
        "mae: the encoder sees a quarter of the patches, a light decoder draws the rest (arXiv 2111.06377); "
        "masked-patch: half of the patches are corrupted, and their colours are to be told (the ViT paper, B.1.2).",
    ] = "mae"
    mask: Annotated[
        float | None, "Part of the patches that is hidden; by default 0.75 (mae), 0.5 (masked-patch).", Between(0, 1)
    ] = None
    target: Annotated[
        Target,
        "What is predicted of a hidden patch: its pixels, normalised by its own mean and deviation (auto for mae) or "
        "as they are; its mean colour among 512 (auto for masked-patch), or that of each sixteenth of it.",
    ] = "auto"
    decoder_layers: Annotated[
        int | None, "Of mae's decoder; by default two thirds of the encoder's, 8 at most.", Between(1, 1000)
    ] = None
    decoder_width: Annotated[
        int | None, "Of mae's decoder; by default two thirds of the encoder's, 512 at most.", Between(32, 1e5)
    ] = None
    unlabelled: Annotated[
        bool, "Take every picture below the folder, whatever its folders mean; none is kept for testing."
    ] = False

    def __post_init__(self) -> None:
        settle_types(self)
        check_ranges(self)
        kind = KINDS[self.objective]
        if self.target not in ("auto", *kind.targets):
            raise VitkitError(f"--objective {self.objective} predicts {', '.join(kind.targets)}, not {self.target}")
        if self.objective != "mae":
            for name in ("decoder_layers", "decoder_width"):
                if getattr(self, name) is not None:
                    raise VitkitError(f"--{name.replace('_', '-')}: only --objective mae has a decoder; leave it out")
        if self.decoder_width is not None and self.decoder_width % 32:
            raise VitkitError(
                f"--decoder-width must be a multiple of 32, for heads of that size, not {self.decoder_width}"
            )

    def settled(self) -> Pretraining:
        """The same with what was left to the objective; the decoder is left to the encoder."""
        kind = KINDS[self.objective]
        target = kind.targets[0] if self.target == "auto" else self.target
        return dataclasses.replace(self, mask=kind.mask if self.mask is None else self.mask, target=target)

    def to_dict(self) -> dict[str, Any]:
        """Fields that are not None."""
        return {name: value for name, value in dataclasses.asdict(self).items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class OtherDefaults:
    """Fields of a recipe as they are in pre-training, where nothing names them."""

    weights: Annotated[str, "Where to start: none, a model folder, a checkpoint, or a published name."] = "none"
    beta2: Annotated[float | None, "Second beta of adam and adamw; by default 0.95 (mae), 0.999 (masked-patch)."] = None


def parted(fields: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Fields of pre-training, and the others, which are the recipe's."""
    own = {name: value for name, value in fields.items() if name in hints_of(Pretraining)}
    return own, {name: value for name, value in fields.items() if name not in own}


class PretrainingFields(SharedFields, total=False):
    """Fields that `vitkit.pretrain` takes."""

    model: str | None
    devices: int | None
    nodes: int | None
    objective: Literal["mae", "masked-patch"]
    mask: float | None
    target: Target
    decoder_layers: int | None
    decoder_width: int | None
    unlabelled: bool
