"""vitkit: Vision Transformers that you can trust, inspect and deploy.

Functions such as `train` and `predict` do the same as the commands with the same names. `load` opens a trained or
published model. Names are imported on first use. To read the code, start with `model/vit.py`.
"""

import sys

if sys.argv[:1] == ["-m"] and sys.orig_argv[-len(sys.argv) :][:1] == ["vitkit"] and not sys.flags.safe_path:
    del sys.path[0]  # the current folder, which `python -m vitkit` puts before the standard library

from typing import TYPE_CHECKING

from vitkit.system import importer

if TYPE_CHECKING:
    from collections.abc import Callable

    from vitkit.classifier import Classifier
    from vitkit.data.preprocess import Preprocess
    from vitkit.errors import VitkitError
    from vitkit.evaluation.registry import register_metric
    from vitkit.experiments.compare import Comparison, compare
    from vitkit.experiments.lab import LabResult
    from vitkit.experiments.lab.lab import lab
    from vitkit.inference.prediction import Prediction
    from vitkit.language.zero_shot import zero_shot
    from vitkit.model.build import LoadReport
    from vitkit.model.config import ViTConfig
    from vitkit.model.names import list_models
    from vitkit.model.parts import Attention, Block, Mlp, PatchEmbed
    from vitkit.model.registry import register_block, register_model
    from vitkit.model.vit import VisionTransformer
    from vitkit.serving.serve import Server, serve
    from vitkit.verbs.bench import Benchmark, bench
    from vitkit.verbs.convert import Conversion, convert
    from vitkit.verbs.doctor import Checkup, doctor
    from vitkit.verbs.drift import Drift
    from vitkit.verbs.dry_run import DryRun, dry_run
    from vitkit.verbs.embed import Embeddings, embed
    from vitkit.verbs.evaluate import EvaluationResult, evaluate
    from vitkit.verbs.explain import Anatomy, Explanations, explain
    from vitkit.verbs.export import Export, export
    from vitkit.verbs.info import Info, info
    from vitkit.verbs.models import ModelList, WeightList, models
    from vitkit.verbs.predict import Predictions, predict
    from vitkit.verbs.pretrain import PretrainingRun, pretrain
    from vitkit.verbs.push import Push, push
    from vitkit.verbs.shard import Sharding, shard
    from vitkit.verbs.train import TrainingRun, train
    from vitkit.webapp.studio import studio
    from vitkit.weights import load
    from vitkit.weights.loading import create_model

__version__ = "0.1.0"
__all__ = [
    "Anatomy",
    "Attention",
    "Benchmark",
    "Block",
    "Checkup",
    "Classifier",
    "Comparison",
    "Conversion",
    "Drift",
    "DryRun",
    "Embeddings",
    "EvaluationResult",
    "Explanations",
    "Export",
    "Info",
    "LabResult",
    "LoadReport",
    "Mlp",
    "ModelList",
    "PatchEmbed",
    "Prediction",
    "Predictions",
    "Preprocess",
    "PretrainingRun",
    "Push",
    "Server",
    "Sharding",
    "TrainingRun",
    "ViTConfig",
    "VisionTransformer",
    "VitkitError",
    "WeightList",
    "bench",
    "compare",
    "convert",
    "create_model",
    "doctor",
    "dry_run",
    "embed",
    "evaluate",
    "explain",
    "export",
    "info",
    "lab",
    "list_models",
    "load",
    "models",
    "predict",
    "pretrain",
    "push",
    "register_block",
    "register_metric",
    "register_model",
    "serve",
    "shard",
    "studio",
    "train",
    "zero_shot",
]

HOMES = {  # the module of each name, relative to vitkit; functions in verbs are also commands (vitkit.cli.commands)
    "Anatomy": "verbs.explain",
    "Attention": "model.parts",
    "Benchmark": "verbs.bench",
    "Block": "model.parts",
    "Checkup": "verbs.doctor",
    "Classifier": "classifier",
    "Comparison": "experiments.compare",
    "Conversion": "verbs.convert",
    "Drift": "verbs.drift",
    "DryRun": "verbs.dry_run",
    "Embeddings": "verbs.embed",
    "EvaluationResult": "verbs.evaluate",
    "Explanations": "verbs.explain",
    "Export": "verbs.export",
    "Info": "verbs.info",
    "LabResult": "experiments.lab",
    "LoadReport": "model.build",
    "Mlp": "model.parts",
    "ModelList": "verbs.models",
    "PatchEmbed": "model.parts",
    "Prediction": "inference.prediction",
    "Predictions": "verbs.predict",
    "Preprocess": "data.preprocess",
    "PretrainingRun": "verbs.pretrain",
    "Push": "verbs.push",
    "Server": "serving.serve",
    "Sharding": "verbs.shard",
    "TrainingRun": "verbs.train",
    "ViTConfig": "model.config",
    "VisionTransformer": "model.vit",
    "VitkitError": "errors",
    "WeightList": "verbs.models",
    "bench": "verbs.bench",
    "compare": "experiments.compare",
    "convert": "verbs.convert",
    "create_model": "weights.loading",
    "doctor": "verbs.doctor",
    "dry_run": "verbs.dry_run",
    "embed": "verbs.embed",
    "evaluate": "verbs.evaluate",
    "explain": "verbs.explain",
    "export": "verbs.export",
    "info": "verbs.info",
    "lab": "experiments.lab.lab",
    "list_models": "model.names",
    "load": "weights",
    "models": "verbs.models",
    "predict": "verbs.predict",
    "pretrain": "verbs.pretrain",
    "push": "verbs.push",
    "register_block": "model.registry",
    "register_metric": "evaluation.registry",
    "register_model": "model.registry",
    "serve": "serving.serve",
    "shard": "verbs.shard",
    "studio": "webapp.studio",
    "train": "verbs.train",
    "zero_shot": "language.zero_shot",
}


def _model_function(name: str) -> "Callable[..., VisionTransformer] | None":
    """Return a function that creates the model of a name such as `vit_base_patch16_224`; None for any other name."""
    if name.startswith(("vit_", "deit_")):
        from functools import partial

        from vitkit.model.names import is_model_name

        if is_model_name(name):
            return partial(__getattr__("create_model"), name)
    return None


__getattr__ = importer(__name__, HOMES, _model_function)


def __dir__() -> list[str]:
    return __all__
