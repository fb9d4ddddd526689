"""A DeiT student of the digits, with a teacher and without: `python benchmarks/distillation.py [EPOCHS [SEED ...]]`.

The teacher is torchvision's ResNet-18, trained here from scratch on the same images of the same split with the same
augmentation. The students share everything but the teacher. Results go to benchmarks/results.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F
from tables import save_table
from torchvision.models import resnet18

from vitkit.data import IMAGENET_MEAN, IMAGENET_STD, ImageData, Preprocess, read_source, split
from vitkit.training import augment_of, complete

VITKIT = str(Path(sys.executable).with_name("vitkit"))
STUDENT = "deit_micro_distilled_patch4_16"


def train_teacher(seed: int, epochs: int, file: Path) -> float:
    """A CNN on the training images of this seed's split; its accuracy on the test images."""
    images = read_source("digits")
    recipe, _ = complete({"data": "digits", "seed": seed}, images)
    table = split(images, recipe.split, seed)
    preprocess = Preprocess(size=(16, 16), fit="squash", interpolation="bilinear", mean=IMAGENET_MEAN, std=IMAGENET_STD)
    data = ImageData(table, preprocess, augment_of(recipe), batch_size=32, workers=0, seed=seed)
    torch.manual_seed(seed)
    network = resnet18(num_classes=len(table.classes))
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, total_steps=epochs * data.batches)
    for epoch in range(epochs):
        network.train()
        for images, labels in data.train_batches(epoch):
            optimizer.zero_grad()
            F.cross_entropy(network(images), labels).backward()
            optimizer.step()
            schedule.step()
    torch.save(network.state_dict(), file)
    network.eval()
    held_out = ImageData(table, preprocess, augment_of(recipe), batch_size=64, workers=0, seed=seed)
    held_out.val.table = table.of_split("test")
    with torch.no_grad():
        answers = [network(images).argmax(1) == labels for images, labels in held_out.val_batches()]
    return torch.cat(answers).float().mean().item()


def train_student(seed: int, epochs: int, out: Path, *flags: str) -> float:
    """One run through the command line; its accuracy on the test images."""
    command = [VITKIT, "train", "digits", "--model", STUDENT, "--epochs", str(epochs), "--seed", str(seed)]
    subprocess.run([*command, "--out", str(out), *flags], check=True)
    told = subprocess.run([VITKIT, "eval", str(out), "--json"], check=True, capture_output=True, text=True).stdout
    return float(json.loads(told)["accuracy"])


def main(epochs: int, seeds: list[int]) -> None:
    """Train the teacher and the students of each seed, print, write."""
    rows = []
    with tempfile.TemporaryDirectory() as name:
        for seed in seeds:
            folder = Path(name) / str(seed)
            folder.mkdir()
            teacher = f"resnet18:{folder / 'teacher.pth'}"
            rows.append(
                {
                    "seed": seed,
                    "epochs": epochs,
                    "teacher": round(train_teacher(seed, min(epochs, 20), folder / "teacher.pth"), 4),
                    "student_alone": train_student(seed, epochs, folder / "alone"),
                    "student_hard": train_student(seed, epochs, folder / "hard", "--teacher", teacher),
                    "student_soft": train_student(
                        seed, epochs, folder / "soft", "--teacher", teacher, "--distillation", "soft"
                    ),
                }
            )
            print(rows[-1])
    save_table("distillation", "float32", rows)


if __name__ == "__main__":
    numbers = [int(argument) for argument in sys.argv[1:]]
    main(numbers[0] if numbers else 70, numbers[1:] or [0, 1, 2])
