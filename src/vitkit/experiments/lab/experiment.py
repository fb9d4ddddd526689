"""What an experiment consists of: a question, what is varied or measured, and the paper's result. Does not import
torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vitkit.model.config import ViTConfig

PAPER = "arXiv 2010.11929"
# Fine-tuning all weights alike, so that it differs from a training from scratch in where it begins alone.
TUNING: dict[str, Any] = {"method": "full", "lp_ft": False, "patch_dropout": 0.0, "layer_decay": 1.0}


@dataclass(frozen=True)
class AblationVariant:
    """One of the configurations that an ablation trains.

    Attributes:
        label: what the tables call it.
        fields: the fields of the recipe that differ; those of the model in `model_fields`.
        paper: the paper's figure of it, as it is printed there.
        times: the times by how much fields of the recipe are multiplied, such as lr and epochs.
        after: the label of an earlier variant, whose run of the same seed it starts from; None: from none.
        pretraining: fields of `vitkit pretrain`, which comes first, with the same seed, on the training images; empty:
            it does not.
        usual: fields of the recipe where nobody says otherwise, which the method would choose otherwise by itself.
    """

    label: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    paper: str | None = None
    times: Mapping[str, float] = field(default_factory=dict)
    after: str | None = None
    pretraining: Mapping[str, Any] = field(default_factory=dict)
    usual: Mapping[str, Any] = field(default_factory=dict)


def of_model(label: str, paper: str | None = None, **fields: Any) -> AblationVariant:
    """Make a variant with other values of the model's fields."""
    return AblationVariant(label, {"model_fields": fields} if fields else {}, paper)


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A question and where the paper treats it.

    Attributes:
        name: the name by which it is requested.
        question: the question in one line.
        source: the source where the paper, or another, treats it.
        says: what it finds there.
        differs: how the `small` preset differs from the source's experiment.
        recipe: the bundled recipe with the published hyper-parameters, which the `paper` preset takes; None: the source
            publishes none.
    """

    name: str
    question: str
    source: str
    says: str
    differs: str
    recipe: str | None = None


@dataclass(frozen=True, kw_only=True)
class Ablation(Experiment):
    """Variants that are trained alike, with paired seeds, and judged by the same images.

    Attributes:
        variants: the variants of a base configuration; they may depend on it.
        against: the label of the one that the others are compared with.
        better: labels of those of which the source says that they are better than it.
        column: what `Variant.paper` is a figure of.
    """

    variants: Callable[[ViTConfig], Sequence[AblationVariant]]
    against: str
    better: tuple[str, ...] = ()
    column: str = ""


@dataclass(frozen=True, kw_only=True)
class Measurement(Experiment):
    """Something that is measured of a model that there is.

    Attributes:
        module, function: what measures it: (classifier, source, images, settings) -> rows; see `measuring`.
    """

    module: str
    function: str
