"""Dropout (app. B.1) against stochastic depth (arXiv 2106.10270)."""

from vitkit.experiments.lab.experiment import PAPER, Ablation, Variant

EXPERIMENT = Ablation(
    name="regularisation",
    question="Dropout, stochastic depth, or neither?",
    source=f"{PAPER}, app. B.1, Table 3; arXiv 2106.10270, sec. 4",
    says="the paper trains ImageNet and ImageNet-21k with dropout 0.1, JFT without; neither is compared in a table",
    differs="there is no figure in the paper",
    recipe="paper-vit-b16-imagenet",
    variants=lambda _: (
        Variant("neither", {"dropout": 0.0, "drop_path": 0.0}),
        Variant("dropout 0.1", {"dropout": 0.1, "drop_path": 0.0}),
        Variant("stochastic depth 0.1", {"dropout": 0.0, "drop_path": 0.1}),
    ),
    against="neither",
)
