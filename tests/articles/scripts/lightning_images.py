"""Train a ViT with a LightningModule of one's own, as articles do on CIFAR-10. It uses vitkit's model only."""

import sys

import lightning
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, random_split
from torchvision import datasets, transforms

import vitkit


class LitViT(lightning.LightningModule):
    def __init__(self, num_classes, lr=1e-3, epochs=1):
        super().__init__()
        self.save_hyperparameters()
        self.model = vitkit.VisionTransformer(
            img_size=32, patch_size=8, embed_dim=64, depth=2, num_heads=2, num_classes=num_classes
        )

    def forward(self, x):
        return self.model(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        logits = self(x)
        loss = F.cross_entropy(logits, y)
        self.log("train_loss", loss)
        self.log("train_acc", (logits.argmax(1) == y).float().mean())
        return loss

    def evaluate(self, batch, stage):
        x, y = batch
        logits = self(x)
        self.log(f"{stage}_loss", F.cross_entropy(logits, y), prog_bar=True)
        self.log(f"{stage}_acc", (logits.argmax(1) == y).float().mean(), prog_bar=True)

    def validation_step(self, batch, batch_idx):
        self.evaluate(batch, "val")

    def test_step(self, batch, batch_idx):
        self.evaluate(batch, "test")

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr, weight_decay=5e-4)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=self.hparams.epochs)
        return {"optimizer": optimizer, "lr_scheduler": scheduler}


def main(folder):
    transform = transforms.Compose(
        [transforms.Resize((32, 32)), transforms.ToTensor(), transforms.Normalize([0.5] * 3, [0.5] * 3)]
    )
    data = datasets.ImageFolder(folder, transform)
    generator = torch.Generator().manual_seed(42)
    train, val, test = random_split(data, [0.6, 0.2, 0.2], generator)
    model = LitViT(len(data.classes))
    trainer = lightning.Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(model, DataLoader(train, 8, shuffle=True), DataLoader(val, 8))
    print(trainer.test(model, DataLoader(test, 8), verbose=False))


if __name__ == "__main__":
    main(sys.argv[1])
