"""One Linear as head, or Linear, tanh, Linear as in the paper's pre-training (sec. 3.1)."""

from __future__ import annotations

from vitkit.experiments.lab.experiment import PAPER, Ablation, of_model

EXPERIMENT = Ablation(
    name="head",
    question="A head of one Linear, or of Linear, tanh and Linear?",
    source=f"{PAPER}, sec. 3.1",
    says="two layers while pre-training, one while fine-tuning; they are not compared in a table",
    differs="there is no figure in the paper",
    recipe="paper-vit-b16-imagenet21k",
    variants=lambda base: (
        of_model("Linear", representation_size=None),
        of_model("Linear, tanh, Linear", representation_size=base.hidden_size),
    ),
    against="Linear",
)
