"""LightningModules for users who train vitkit's models with Lightning's Trainer (`pip install vitkit[lightning]`).

Lightning exists as two packages, and each accepts only its own modules: `LightningClassifier` is for a
`lightning.Trainer`, `PytorchLightningClassifier` for a `pytorch_lightning.Trainer`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vitkit.errors import VitkitError
from vitkit.model.build import Model
from vitkit.training.losses import Objective
from vitkit.training.optim import build_optimizer, lr_factor, set_learning_rate
from vitkit.training.recipe import Recipe

_PACKAGES = {"LightningClassifier": "lightning", "PytorchLightningClassifier": "pytorch_lightning"}

if TYPE_CHECKING:
    from lightning import LightningModule
else:
    LightningModule = object


class _FineTuning(LightningModule):
    """A classifier for Lightning's Trainer, which logs train_loss, val_loss and val_acc.

        from lightning import Trainer
        from vitkit import create_model
        from vitkit.training.lightning_module import LightningClassifier
        from vitkit.training.recipe import Recipe

        model = create_model("vit_tiny_patch16_224", num_classes=10)
        task = LightningClassifier(model, Recipe(lr=5e-4, epochs=10))
        Trainer(max_epochs=10).fit(task, train_dataloader, val_dataloader)

    A batch is a pair of preprocessed images (B, C, height, width) and labels (B,).

    Args:
        model: the model to train. Parameters that require no gradient are not changed.
        recipe: sets the optimiser, the learning rate with its warm-up and schedule, and the label smoothing. The
            Trainer sets everything else, such as epochs, precision, accumulation and clipping.
    """

    def __init__(self, model: Model, recipe: Recipe | None = None) -> None:
        super().__init__()
        self.model, self.recipe = model, recipe or Recipe()
        self.objective = Objective(self.recipe, model.config.num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Compute logits (B, K) from images (B, C, height, width)."""
        return self.model(images)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """Return the mean loss of a batch, a scalar: the label-smoothed cross-entropy of every head."""
        images, labels = batch
        loss = self.objective.loss(self.model.forward_heads(images), images, labels)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """Log the cross-entropy without smoothing, and the accuracy."""
        images, labels = batch
        logits = self(images).float()
        self.log("val_loss", F.cross_entropy(logits, labels), batch_size=len(labels))
        self.log("val_acc", (logits.argmax(dim=1) == labels).float().mean(), batch_size=len(labels), prog_bar=True)

    def configure_optimizers(self) -> Any:
        """Build the recipe's optimiser, with its warm-up and schedule spread over the Trainer's steps."""
        optimizer = build_optimizer(self.model, self.recipe)
        set_learning_rate(optimizer, self.recipe.lr)
        steps = max(int(self.trainer.estimated_stepping_batches), 1)
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: lr_factor(min(step / steps, 1.0), self.recipe, 1 / steps)
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


if TYPE_CHECKING:

    class LightningClassifier(_FineTuning): ...

    class PytorchLightningClassifier(_FineTuning): ...

else:

    def __getattr__(name: str) -> Any:
        """Create `LightningClassifier` or `PytorchLightningClassifier` when it is first used."""
        if name not in _PACKAGES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        package = _PACKAGES[name]
        try:
            base = import_module(package).LightningModule
        except ModuleNotFoundError as error:
            message = f"{name} needs {package}: pip install {package.replace('_', '-')}"
            raise VitkitError("training.package-missing", message) from error
        globals()[name] = type(name, (_FineTuning, base), {"__module__": __name__, "__doc__": _FineTuning.__doc__})
        return globals()[name]
