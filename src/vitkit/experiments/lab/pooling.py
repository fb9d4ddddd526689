"""The class token against the mean of the patches (app. D.3, Figure 9)."""

from vitkit.experiments.lab.experiment import PAPER, Ablation, Variant

_MEAN = {"model_fields": {"pool": "gap"}}

EXPERIMENT = Ablation(
    name="pooling",
    question="A class token, or the mean of the patches?",
    source=f"{PAPER}, app. D.3, Figure 9",
    says="both do as well, but each wants a learning rate of its own: 8e-4 with the token, 3e-4 with the mean",
    differs="Figure 9 is the 5-shot accuracy on ImageNet along the pre-training on JFT, as curves without figures",
    recipe="paper-vit-b16-jft",
    variants=lambda _: (
        Variant("class token", {"model_fields": {"pool": "token"}}),
        Variant("mean, the same rate", _MEAN),
        Variant("mean, 3/8 of the rate", _MEAN, times={"lr": 3 / 8}),
    ),
    against="class token",
)
