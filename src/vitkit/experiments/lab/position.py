"""Position embeddings: none, 1-D, 2-D, relative, and fixed sines and cosines (app. D.4, Table 8)."""

from vitkit.experiments.lab.experiment import PAPER, Ablation, of_model

EXPERIMENT = Ablation(
    name="position",
    question="Does a ViT need position embeddings, and does it matter which?",
    source=f"{PAPER}, app. D.4, Table 8",
    says="a large gap between none and any, and nearly none among the kinds",
    differs=(
        "Table 8 is the 5-shot accuracy on ImageNet of ViT-B/16 (86 M parameters, 14x14 patches) after pre-training; "
        "here the accuracy itself, of a model of 0.8 M parameters, trained from scratch on a few patches an image. The "
        "sines and cosines are not in the paper's table"
    ),
    recipe="paper-vit-b16-jft",
    variants=lambda _: (
        of_model("none", "61.382", position="none"),
        of_model("learned 1-D", "64.206", position="learned_1d"),
        of_model("learned 2-D", "64.001", position="learned_2d"),
        of_model("relative", "64.032", position="relative"),
        of_model("sin-cos 2-D", None, position="sincos_2d"),
    ),
    against="none",
    better=("learned 1-D", "learned 2-D", "relative"),
    column="5-shot ImageNet, B/16, %",
)
