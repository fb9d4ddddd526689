"""Fine-tune a ViT on class folders in plain PyTorch, as the scripts of many articles do, with vitkit's model."""

import argparse
import json
import math
import os
import random
import sys

import torch
from PIL import Image
from torch import nn, optim
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

import vitkit


def read_split_data(root, val_rate=0.2):
    random.seed(0)
    classes = sorted(name for name in os.listdir(root) if os.path.isdir(os.path.join(root, name)))
    class_indices = {name: i for i, name in enumerate(classes)}
    with open("class_indices.json", "w") as file:
        json.dump({i: name for name, i in class_indices.items()}, file, indent=4)
    train_paths, train_labels, val_paths, val_labels = [], [], [], []
    for name in classes:
        folder = os.path.join(root, name)
        images = sorted(os.path.join(folder, f) for f in os.listdir(folder) if f.lower().endswith((".jpg", ".png")))
        val = set(random.sample(images, k=int(len(images) * val_rate)))
        for image in images:
            (val_paths if image in val else train_paths).append(image)
            (val_labels if image in val else train_labels).append(class_indices[name])
    return train_paths, train_labels, val_paths, val_labels


class MyDataSet(Dataset):
    def __init__(self, paths, labels, transform):
        self.paths, self.labels, self.transform = paths, labels, transform

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, item):
        image = Image.open(self.paths[item])
        if image.mode != "RGB":
            raise ValueError(f"image: {self.paths[item]} isn't RGB mode.")
        return self.transform(image), self.labels[item]

    @staticmethod
    def collate_fn(batch):
        images, labels = zip(*batch, strict=True)
        return torch.stack(images, dim=0), torch.as_tensor(labels)


def train_one_epoch(model, optimizer, loader, device):
    model.train()
    loss_function = nn.CrossEntropyLoss()
    total_loss, correct, seen = 0.0, 0, 0
    optimizer.zero_grad()
    for images, labels in loader:
        logits = model(images.to(device))
        correct += (logits.argmax(dim=1) == labels.to(device)).sum().item()
        loss = loss_function(logits, labels.to(device))
        loss.backward()
        if not torch.isfinite(loss):
            sys.exit("WARNING: non-finite loss, ending training")
        optimizer.step()
        optimizer.zero_grad()
        total_loss += loss.item() * len(labels)
        seen += len(labels)
    return total_loss / seen, correct / seen


@torch.no_grad()
def evaluate(model, loader, device):
    model.eval()
    loss_function = nn.CrossEntropyLoss()
    total_loss, correct, seen = 0.0, 0, 0
    for images, labels in loader:
        logits = model(images.to(device))
        correct += (logits.argmax(dim=1) == labels.to(device)).sum().item()
        total_loss += loss_function(logits, labels.to(device)).item() * len(labels)
        seen += len(labels)
    return total_loss / seen, correct / seen


def main(args):
    device = torch.device(args.device if torch.cuda.is_available() else "cpu")
    os.makedirs("weights", exist_ok=True)
    train_paths, train_labels, val_paths, val_labels = read_split_data(args.data_path)
    normalise = transforms.Normalize([0.5, 0.5, 0.5], [0.5, 0.5, 0.5])
    size = args.size
    to_train = transforms.Compose(
        [transforms.RandomResizedCrop(size), transforms.RandomHorizontalFlip(), transforms.ToTensor(), normalise]
    )
    to_val = transforms.Compose(
        [transforms.Resize(size), transforms.CenterCrop(size), transforms.ToTensor(), normalise]
    )
    train_set, val_set = MyDataSet(train_paths, train_labels, to_train), MyDataSet(val_paths, val_labels, to_val)
    train_loader = DataLoader(train_set, args.batch_size, shuffle=True, collate_fn=train_set.collate_fn)
    val_loader = DataLoader(val_set, args.batch_size, shuffle=False, collate_fn=val_set.collate_fn)

    model = vitkit.VisionTransformer(
        img_size=size, patch_size=8, embed_dim=64, depth=2, num_heads=1, num_classes=args.num_classes
    ).to(device)
    if args.weights != "":
        weights = torch.load(args.weights, map_location=device)
        for key in ("head.weight", "head.bias"):
            del weights[key]
        print(model.load_state_dict(weights, strict=False))
    if args.freeze_layers:
        for name, parameter in model.named_parameters():
            if "head" not in name and "pre_logits" not in name:
                parameter.requires_grad_(False)
            else:
                print(f"training {name}")
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = optim.SGD(trained, lr=args.lr, momentum=0.9, weight_decay=5e-5)
    scheduler = optim.lr_scheduler.LambdaLR(
        optimizer, lambda x: ((1 + math.cos(x * math.pi / args.epochs)) / 2) * (1 - args.lrf) + args.lrf
    )
    for epoch in range(args.epochs):
        train_loss, train_acc = train_one_epoch(model, optimizer, train_loader, device)
        scheduler.step()
        val_loss, val_acc = evaluate(model, val_loader, device)
        print(f"epoch {epoch}: {train_loss:.4f} {train_acc:.3f} {val_loss:.4f} {val_acc:.3f}")
        torch.save(model.state_dict(), f"weights/model-{epoch}.pth")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--num_classes", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--lr", type=float, default=0.001)
    parser.add_argument("--lrf", type=float, default=0.01)
    parser.add_argument("--data-path", default="flower_photos")
    parser.add_argument("--weights", default="")
    parser.add_argument("--freeze-layers", action="store_true")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--size", type=int, default=32)
    main(parser.parse_args())
