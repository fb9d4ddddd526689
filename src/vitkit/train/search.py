"""`--find-lr`: short runs from the same start, one for each learning rate, judged on the validation images."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from itertools import islice

import torch
import torch.nn.functional as F
from torch import Tensor

from vitkit.data.augment import mix_seeds
from vitkit.data.datamodule import ImageData
from vitkit.model import VisionTransformer
from vitkit.train.distill import binary_loss, label_loss
from vitkit.train.optim import build_optimizer
from vitkit.train.recipe import Recipe

FACTORS = (0.1, 0.3, 1.0, 3.0, 10.0)  # of the recipe's learning rate
STEPS, WARMUP = 25, 5
_JUDGED = 16  # batches of validation images


def find_lr(
    model: VisionTransformer,
    recipe: Recipe,
    data: ImageData,
    precision: str,
    progress: Callable[[int, int], None],
) -> dict[float, float]:
    """The validation loss that each learning rate leads to in a few steps; infinite where it leads nowhere.

    Args:
        model: where every short run starts; it is left as it is.
        recipe: its `lr` is the middle of what is tried.
        data: training and validation batches; without validation images the last training losses judge.
        precision: float32 or bfloat16.
        progress: told how many of how many steps are done.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    outcome = {}
    for number, factor in enumerate(FACTORS):
        lr = recipe.lr * factor
        copied = copy.deepcopy(model).to(device)
        steps = _short_run(copied, recipe.replace(lr=lr), data, device, precision)
        losses = []
        for done, loss in enumerate(steps, start=1):
            losses.append(loss)
            progress(number * STEPS + done, len(FACTORS) * STEPS)
        judged = _judge(copied, data, device, precision) if len(data.val) else sum(losses[-WARMUP:]) / WARMUP
        outcome[lr] = judged if math.isfinite(judged) else math.inf
    return outcome


def _short_run(
    model: VisionTransformer, recipe: Recipe, data: ImageData, device: torch.device, precision: str
) -> Iterator[float]:
    """Train for a few steps; the loss of each."""
    model.train()
    optimizer = build_optimizer(model, recipe)
    for step, (images, labels) in enumerate(islice(_repeated(data), STEPS)):
        torch.manual_seed(mix_seeds(recipe.seed, step))  # dropout, the same for every learning rate
        for group in optimizer.param_groups:
            group["lr"] = recipe.lr * group["lr_scale"] * min((step + 1) / WARMUP, 1.0)
        with _autocast(device, precision):
            heads = model.forward_heads(images.to(device))
            if data.train.table.is_multi:
                targets = torch.tensor(data.train.table.set_targets())[labels].to(device)  # (B, K)
                loss = binary_loss(heads, targets, label_smoothing=recipe.label_smoothing)
            else:
                loss = label_loss(heads, labels.to(device), recipe.label_smoothing)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        if recipe.clip_grad:
            torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.clip_grad)
        optimizer.step()
        yield loss.item()


def _repeated(data: ImageData) -> Iterator[tuple[Tensor, Tensor]]:
    while True:
        yield from data.train_dataloader()


@torch.inference_mode()
def _judge(model: VisionTransformer, data: ImageData, device: torch.device, precision: str) -> float:
    model.eval()
    losses = []
    for images, labels in islice(data.val_dataloader(), _JUDGED):
        with _autocast(device, precision):
            logits = model(images.to(device))
        if data.val.table.is_multi:
            targets = torch.tensor(data.val.table.set_targets())[labels].to(device)  # (B, K)
            losses.append(F.binary_cross_entropy_with_logits(logits.float(), targets, reduction="none").mean(dim=1))
        else:
            losses.append(F.cross_entropy(logits.float(), labels.to(device), reduction="none"))
    return torch.cat(losses).mean().item()


def _autocast(device: torch.device, precision: str) -> AbstractContextManager[None]:
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16")
