"""Train a ViT with a LightningModule of one's own, as articles do with timm on CIFAR-10, with vitkit's model."""

import sys

import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from pytorch_lightning.callbacks import ModelCheckpoint, StochasticWeightAveraging, TQDMProgressBar
from torch.utils.data import DataLoader, random_split
from torchvision import datasets, transforms

import vitkit

SIZE, BATCH_SIZE, EPOCHS = 32, 16, 2  # 224, 128 and 10 in the articles


class ImagesDataModule(pl.LightningDataModule):
    def __init__(self, folder):
        super().__init__()
        self.folder = folder
        self.transform = transforms.Compose(
            [
                transforms.Resize((SIZE, SIZE)),
                transforms.ToTensor(),
                transforms.Normalize((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
            ]
        )

    def setup(self, stage):
        data = datasets.ImageFolder(self.folder, self.transform)
        self.num_classes = len(data.classes)
        generator = torch.Generator().manual_seed(42)
        self.train, self.val, self.test = random_split(data, [0.6, 0.2, 0.2], generator)

    def train_dataloader(self):
        return DataLoader(self.train, BATCH_SIZE, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.val, BATCH_SIZE)

    def test_dataloader(self):
        return DataLoader(self.test, BATCH_SIZE)


class LitViT(pl.LightningModule):
    def __init__(self, num_classes, lr=1e-3):
        super().__init__()
        self.save_hyperparameters()
        self.model = vitkit.create_model("vit_tiny_patch16_224", num_classes=num_classes, img_size=SIZE, depth=2)

    def forward(self, x):
        return self.model(x)

    def step(self, batch, stage):
        x, y = batch
        logits = self(x)
        loss = F.cross_entropy(logits, y)
        acc = (logits.argmax(dim=1) == y).float().mean()
        self.log(f"{stage}_loss", loss, prog_bar=True, on_step=False, on_epoch=True)
        self.log(f"{stage}_acc", acc, prog_bar=True, on_step=False, on_epoch=True)
        return loss

    def training_step(self, batch, batch_idx):
        return self.step(batch, "train")

    def validation_step(self, batch, batch_idx):
        self.step(batch, "val")

    def test_step(self, batch, batch_idx):
        self.step(batch, "test")

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=self.hparams.lr)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=EPOCHS)
        return [optimizer], [scheduler]


def main(folder):
    pl.seed_everything(42, workers=True)
    data = ImagesDataModule(folder)
    data.setup("fit")
    checkpoint = ModelCheckpoint(
        dirpath="checkpoints", filename="{epoch}-{val_loss:.2f}-{val_acc:.2f}", monitor="val_loss", mode="min"
    )
    trainer = pl.Trainer(
        max_epochs=EPOCHS,
        accelerator="auto",
        devices=1,
        deterministic=True,
        logger=False,
        callbacks=[checkpoint, StochasticWeightAveraging(swa_lrs=1e-2), TQDMProgressBar(refresh_rate=1)],
    )
    trainer.fit(LitViT(data.num_classes), data)
    best = LitViT.load_from_checkpoint(checkpoint.best_model_path)
    trainer.test(best, data)


if __name__ == "__main__":
    main(sys.argv[1])
