"""Features of the photographs under the weights that a run starts from, computed once for everything that uses them.

The features are those that a linear probe reads: the class token and the mean of the patches, where the model has a
class token. They choose the method, fit the head, reveal label errors, and test the score for unknown images.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from vitkit.data.loading import EvaluationImages, check_main_guard, explain_worker_errors, quiet_workers
from vitkit.data.picture_store import PictureStore
from vitkit.data.table import ImageTable
from vitkit.model.build import Model
from vitkit.model.config import ViTConfig
from vitkit.model.names import Config
from vitkit.model.vit import VisionTransformer
from vitkit.system import environment as devices
from vitkit.system.progress import progress
from vitkit.training.recipe import Recipe
from vitkit.training.start import Blueprint, blueprint_of, choose_precision, choose_workers, new_classifier
from vitkit.weights.loading import WeightsSource

_MODEL_FIELDS = (  # the fields of a recipe that determine the initial model
    *("model", "model_fields", "weights", "image_size", "fit", "crop_pct", "interpolation", "seed"),
    *("dropout", "drop_path"),
)


class FeatureStore:
    """The features of photographs under the initial weights of a run.

    The recipe determines the weights and the precision. `weights` are the weights if they have been opened already, and
    `pictures` the decoded photographs of the run; without `pictures`, the files are read.
    """

    def __init__(
        self, recipe: Recipe, weights: WeightsSource | None = None, pictures: PictureStore | None = None
    ) -> None:
        self.recipe, self._weights, self._pictures = recipe, weights, pictures
        self.precision = choose_precision(recipe.precision, recipe.device)
        self._row_of: dict[str, int] = {}
        self._rows = torch.empty(0)

    def features(self, table: ImageTable, what: str) -> Tensor:
        """Return the features of n images, (n, D) float32. Those that are not known yet are computed.

        `what` is the name of this work in the progress display.
        """
        missing = [i for i, path in enumerate(table.paths) if path not in self._row_of]
        if missing:
            added = table.take(missing)
            recipe = Recipe(**{name: getattr(self.recipe, name) for name in _MODEL_FIELDS}, method="probe")
            with torch.random.fork_rng():  # the training that follows draws the same numbers as without this
                classifier = new_classifier(blueprint_of(recipe, added.classes, self._weights), added, "")
            if self.recipe.lp_ft and isinstance(classifier.model, VisionTransformer):
                # Compute attention as the training will: other rounding errors lead to a visibly different first head.
                classifier.model.fused_attention = devices.choose_device(self.recipe.device) == "cuda"
            images = EvaluationImages(added, classifier.preprocess, self._pictures)
            rows, _ = compute_features(classifier.model, images, self.recipe, self.precision, partial(progress, what))
            for row, path in enumerate(added.paths, start=len(self._row_of)):
                self._row_of[path] = row
            self._rows = torch.cat([self._rows.reshape(-1, rows.shape[1]), rows])
        return self._rows[[self._row_of[path] for path in table.paths]]

    def head_features(self, table: ImageTable, config: Config, what: str) -> Tensor:
        """Return the features of n images that the head of the run's model reads, (n, D)."""
        rows = self.features(table, what)
        if not isinstance(config, ViTConfig) or config.pool != "token":
            return rows
        return rows[:, : config.hidden_size]  # the class token comes first


def shares_features(blueprint: Blueprint) -> bool:
    """Return whether the head of a run reads features that a `FeatureStore` computes."""
    config = blueprint.config
    if isinstance(config, ViTConfig) and (config.representation_size is not None or config.distill_head):
        return False
    return blueprint.weights is not None and blueprint.recipe.head_from != "names"


def compute_features(
    model: Model, images: Dataset[Any], recipe: Recipe, precision: str, progress: Callable[[int, int], None]
) -> tuple[Tensor, Tensor]:
    """Return the features of n images, (n, D) float32, and their labels, (n,)."""
    device = torch.device(devices.choose_device(recipe.device))
    model.eval().to(device)
    count, done = len(images), 0  # type: ignore[arg-type]  # all data sets here have a length
    features, labels = torch.empty(0), torch.empty(count, dtype=torch.long)
    for batch, label in _batches(images, recipe, choose_workers(recipe, model.config.image_size)):
        with torch.inference_mode():
            with torch.autocast(device.type, getattr(torch, precision), enabled=precision != "float32"):
                tokens = model.forward_features(batch.to(device))  # (B, N, D)
            rows = model.forward_head(tokens.float(), pre_logits=True)  # (B, D)
        if not done:
            features = torch.empty(count, rows.shape[1])  # one tensor, because many small ones would fragment memory
        span = slice(done, done + len(label))
        features[span], labels[span] = rows, label
        done += len(label)
        progress(done, count)
    model.cpu()
    return features, labels


def _batches(images: Dataset[Any], recipe: Recipe, workers: int) -> Iterator[tuple[Tensor, Tensor]]:
    if workers:
        check_main_guard()
    with explain_worker_errors(workers, "use --workers 0"):
        with quiet_workers():
            batches = iter(DataLoader(images, recipe.batch_size, num_workers=workers))
        yield from batches
