"""Pre-training without labels: a network learns to predict hidden patches of images, and its encoder is saved.

This file defines the options that a pre-training has in addition to the fields of a recipe, without importing torch.
Open `pretrain.py` first: it lists the stages of a pre-training. `objectives.py` defines the network and its two tasks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from vitkit.errors import VitkitError
from vitkit.text.arguments import Between, Options, hints_of
from vitkit.training.recipe import Labels, Method, Targets

Target = Literal["auto", "normalised", "pixels", "colour", "colour-4x4"]


@dataclass(frozen=True)
class ObjectiveDefaults:
    mask: float  # the fraction of the patches that are hidden
    targets: tuple[Target, ...]  # what the objective can predict for a hidden patch; the first one is the default
    recipe: dict[str, Any]  # defaults of recipe fields that differ from those of a training with labels


_RECIPE: dict[str, Any] = {
    "hflip": True,
    "color_jitter": 0.0,
    "drop_path": 0.0,
    "monitor": "val_loss",
    "label_smoothing": 0.0,
    "crop_scale": (0.2, 1.0),
    "warmup": 0.05,
    "epochs": 200,
}
OBJECTIVES = {
    # arXiv 2111.06377, table 8, except for lr, epochs and gradient clipping, which depend on the amount of data.
    "mae": ObjectiveDefaults(0.75, ("normalised", "pixels"), {**_RECIPE, "beta2": 0.95}),
    # arXiv 2010.11929, app. B.1.2, with the same exceptions.
    "masked-patch": ObjectiveDefaults(0.5, ("colour", "colour-4x4", "pixels"), _RECIPE),
}


@dataclass(frozen=True, kw_only=True)
class Pretraining(Options):
    """What a pre-training without labels learns. If an option is None, the default of the objective is used.

    It is the argument `pretraining` of `vitkit.pretrain`.

        >>> import vitkit
        >>> vitkit.Pretraining(objective="masked-patch").resolved().mask
        0.5
    """

    objective: Literal["mae", "masked-patch"] = "mae"
    """mae: the encoder sees the unmasked patches, and a light decoder predicts the others (arXiv 2111.06377);
    masked-patch: half of the patches are corrupted, and their colours are predicted (the ViT paper, B.1.2).
    """
    mask: Annotated[float | None, Between(0, 1)] = None
    """The part of the patches to hide; by default 0.75 (mae) or 0.5 (masked-patch)."""
    target: Target = "auto"
    """What to predict for a hidden patch: its pixels with mean 0 and deviation 1 (normalised; auto for mae), its
    pixels, its mean colour, one of 512 (colour; auto for masked-patch), or the mean colours of 4 x 4 cells.
    """
    unlabelled: bool = False
    """Use every image below the folder, regardless of its folders; none is held out for testing."""

    def __post_init__(self) -> None:
        super().__post_init__()
        defaults = OBJECTIVES[self.objective]
        if self.target not in ("auto", *defaults.targets):
            raise VitkitError(
                "training.target-unsupported",
                f"--target must be one of {', '.join(defaults.targets)} with --objective {self.objective}, "
                f"not {self.target}",
            )

    def resolved(self) -> Pretraining:
        """Return the options with the objective's mask and target for unset ones."""
        defaults = OBJECTIVES[self.objective]
        target = defaults.targets[0] if self.target == "auto" else self.target
        return self.replace(mask=defaults.mask if self.mask is None else self.mask, target=target)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields that are not None."""
        return {name: value for name, value in super().to_dict().items() if value is not None}


LABEL_FIELDS = tuple(name for group in (Labels, Method, Targets) for name in hints_of(group))  # fields of a recipe


def split_fields(fields: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split fields into two mappings: the fields of `Pretraining`, and all others, which are fields of a recipe."""
    options = {name: value for name, value in fields.items() if name in hints_of(Pretraining)}
    return options, {name: value for name, value in fields.items() if name not in options}
