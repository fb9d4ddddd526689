"""Train on CIFAR-10 with Lightning's Trainer: `python examples/lightning_cifar10.py [DATA] [EPOCHS] [MODEL]`.

The script wraps a ViT in a LightningModule and trains it with ModelCheckpoint, stochastic weight averaging and a cosine
schedule. It saves the averaged weights as a model folder, for `vitkit predict runs/lightning IMAGE` and all other
commands. DATA is `cifar10` (downloaded once) or any folder with train/ and test/. It requires
`pip install vitkit[lightning]`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint, StochasticWeightAveraging
from torch.utils.data import DataLoader

import vitkit
from vitkit.data import Augment, EvaluationImages, TrainingImages, read_source, split
from vitkit.training import LightningClassifier, Recipe


class Augmented(torch.utils.data.Dataset):
    """Training images for a Trainer, which passes only an index; vitkit draws augmentation by (seed, epoch, image)."""

    def __init__(self, images: TrainingImages) -> None:
        self.images = images

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.images[int(torch.randint(2**31, ())), index]


def main(
    data: str = "cifar10", epochs: int = 10, name: str = "vit_tiny_patch4_32", out: Path = Path("runs/lightning")
) -> None:
    """Train a model and save it as a model folder."""
    L.seed_everything(0, verbose=False)
    table = split(read_source(data), (0.9, 0.1, 0.0), seed=0)  # train/ is divided, test/ stays as it is
    model = vitkit.create_model(name, num_classes=len(table.classes))
    preprocess = vitkit.Preprocess(size=model.config.image_size)
    train = Augmented(TrainingImages(table.of_split("train"), preprocess, Augment(), seed=0))
    val, test = (EvaluationImages(table.of_split(part), preprocess) for part in ("val", "test"))
    task = LightningClassifier(model, Recipe(lr=1e-3, epochs=epochs, warmup=0.1, schedule="cosine"))
    best = ModelCheckpoint(out / "checkpoints", monitor="val_acc", mode="max")
    trainer = L.Trainer(
        max_epochs=epochs,
        callbacks=[best, StochasticWeightAveraging(swa_lrs=1e-4, swa_epoch_start=0.75)],
        logger=False,
        gradient_clip_val=1.0,
    )
    trainer.fit(task, DataLoader(train, batch_size=128, shuffle=True), DataLoader(val, batch_size=256))
    trainer.validate(task, DataLoader(test, batch_size=256))
    classifier = vitkit.Classifier(model, table.classes, preprocess)
    classifier.save(out)
    print(f"the model is in {out}; its best epoch by validation is {best.best_model_path}")


if __name__ == "__main__":
    arguments = sys.argv[1:]
    main(*arguments[:1], *map(int, arguments[1:2]), *arguments[2:3])
