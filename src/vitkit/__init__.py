"""vitkit: Vision Transformers that you can trust, inspect and deploy.

Functions such as `train` and `predict` do the same as the commands with the same names. `load` opens a trained or
published model. Names are imported on first use. To read the code, start with `model/vit.py`.
"""

import sys

if sys.argv[:1] == ["-m"] and sys.orig_argv[-len(sys.argv) :][:1] == ["vitkit"] and not sys.flags.safe_path:
    del sys.path[0]  # the current folder, which `python -m vitkit` puts before the standard library

from typing import TYPE_CHECKING

from vitkit.system import lazily, public_names

if TYPE_CHECKING:
    from collections.abc import Callable

    from vitkit.classifier import Classifier as Classifier
    from vitkit.data.preprocess import Preprocess as Preprocess
    from vitkit.data.user_datasets import Datasets as Datasets
    from vitkit.errors import VitkitError as VitkitError
    from vitkit.evaluation.registry import register_metric as register_metric
    from vitkit.experiments.compare import compare as compare
    from vitkit.experiments.lab.lab import lab as lab
    from vitkit.inference.prediction import Prediction as Prediction
    from vitkit.language.zero_shot import zero_shot as zero_shot
    from vitkit.model.build import LoadReport as LoadReport
    from vitkit.model.config import ViTConfig as ViTConfig
    from vitkit.model.names import list_models as list_models
    from vitkit.model.parts import Attention as Attention, Block as Block, Mlp as Mlp, PatchEmbed as PatchEmbed
    from vitkit.model.registry import register_block as register_block, register_model as register_model
    from vitkit.model.vit import VisionTransformer as VisionTransformer
    from vitkit.verbs.options import Compute as Compute, Names as Names, Promises as Promises
    from vitkit.serving.serve import Server as Server, serve as serve
    from vitkit.training.pretraining import Pretraining as Pretraining
    from vitkit.training.recipe import Recipe as Recipe
    from vitkit.training.request import Hooks as Hooks
    from vitkit.verbs.bench import bench as bench
    from vitkit.verbs.convert import convert as convert
    from vitkit.verbs.doctor import doctor as doctor
    from vitkit.verbs.dry_run import dry_run as dry_run
    from vitkit.verbs.embed import Embeddings as Embeddings, embed as embed
    from vitkit.verbs.evaluate import EvaluationResult as EvaluationResult, evaluate as evaluate
    from vitkit.verbs.anatomy import anatomy as anatomy
    from vitkit.verbs.explain import Explanations as Explanations, explain as explain
    from vitkit.verbs.export import export as export
    from vitkit.verbs.info import info as info
    from vitkit.verbs.models import models as models
    from vitkit.verbs.predict import Predictions as Predictions, predict as predict
    from vitkit.verbs.pretrain import PretrainingRun as PretrainingRun, pretrain as pretrain
    from vitkit.verbs.push import push as push
    from vitkit.verbs.result import Result as Result
    from vitkit.verbs.shard import shard as shard
    from vitkit.verbs.train import TrainingRun as TrainingRun, train as train
    from vitkit.webapp.studio import studio as studio
    from vitkit.weights import load as load
    from vitkit.weights.loading import create_model as create_model

__version__ = "0.1.0"
HOMES = public_names(__name__)  # the module of each name; functions in verbs are also commands (vitkit.cli.commands)


def _model_function(name: str) -> "Callable[..., VisionTransformer] | None":
    """Return a function that creates the model of a name such as `vit_base_patch16_224`; None for any other name."""
    if name.startswith(("vit_", "deit_")):
        from functools import partial

        from vitkit.model.names import is_model_name

        if is_model_name(name):
            return partial(__getattr__("create_model"), name)
    return None


__getattr__ = lazily(__name__, _model_function)


def __dir__() -> list[str]:
    return list(__getattr__("__all__"))
