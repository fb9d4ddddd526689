"""LayerNorm before each sub-layer (eqs. 2 and 3), or after it as in the original Transformer."""

from vitkit.experiments.lab.experiment import PAPER, Ablation, of_model

EXPERIMENT = Ablation(
    name="norm",
    question="LayerNorm before each sub-layer, or after it?",
    source=f"{PAPER}, eqs. 2 and 3; arXiv 2002.04745",
    says="the paper takes pre-norm without comparing; post-norm is known to need a careful warm-up in deep models",
    differs="there is no figure in the paper; a model of few layers hardly shows what depth does",
    recipe="paper-vit-b16-jft",
    variants=lambda _: (of_model("pre-norm", norm="pre"), of_model("post-norm", norm="post")),
    against="pre-norm",
)
