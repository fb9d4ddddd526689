"""Train a ViT, a hybrid and a CNN on growing parts of the data in a loop of one's own; print a table, draw curves."""

import sys
import time

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, Subset, random_split
from torchvision import datasets, models, transforms

import vitkit


def create(name, classes):
    if name == "ViT":
        return vitkit.VisionTransformer(
            img_size=32, patch_size=8, embed_dim=64, depth=2, num_heads=2, num_classes=classes
        )
    if name == "hybrid":
        return vitkit.VisionTransformer(
            img_size=32, patch_size=1, stem=(), embed_dim=64, depth=2, num_heads=2, num_classes=classes
        )
    return models.resnet18(num_classes=classes)


def accuracy(model, loader):
    model.eval()
    with torch.no_grad():
        right = sum((model(x).argmax(1) == y).sum().item() for x, y in loader)
    return right / len(loader.dataset)


def train(model, data, epochs):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(epochs):
        model.train()
        for x, y in DataLoader(data, 8, shuffle=True):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()


def main(folder, parts=(0.5, 1.0), epochs=1):
    transform = transforms.Compose([transforms.Resize((32, 32)), transforms.ToTensor()])
    data = datasets.ImageFolder(folder, transform)
    train_set, test_set = random_split(data, [0.7, 0.3], torch.Generator().manual_seed(0))
    test_loader = DataLoader(test_set, 16)
    print("model", "part", "epochs", "parameters", "seconds", "accuracy")
    for name in ("ViT", "hybrid", "ResNet-18"):
        curve = []
        for part in parts:
            torch.manual_seed(0)
            model = create(name, len(data.classes))
            start = time.time()
            train(model, Subset(train_set, range(int(part * len(train_set)))), epochs)
            seconds = time.time() - start
            parameters = sum(p.numel() for p in model.parameters())
            curve.append(accuracy(model, test_loader))
            print(name, part, epochs, parameters, f"{seconds:.1f}", curve[-1])
        plt.plot(parts, curve, marker="o", label=name)
    plt.xlabel("part of the training data")
    plt.ylabel("accuracy")
    plt.legend()
    plt.savefig("comparison.png")


if __name__ == "__main__":
    main(sys.argv[1])
