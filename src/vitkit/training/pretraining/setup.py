"""From what is asked for to what is trained: an encoder, and the task that teaches it."""

from __future__ import annotations

from dataclasses import replace

import torch

from vitkit.classifier import Classifier
from vitkit.data.augment import mix_seeds
from vitkit.data.preprocess import Preprocess
from vitkit.data.table import ImageTable
from vitkit.errors import VitkitError
from vitkit.model.config import ViTConfig
from vitkit.model.network_config import Config
from vitkit.model.vit import Attention, VisionTransformer
from vitkit.system.progress import Progress
from vitkit.training.patches import needs_every_patch
from vitkit.training.pretraining.choices import Pretraining
from vitkit.training.pretraining.mae import MaskedAutoencoding
from vitkit.training.pretraining.masked_patch import MaskedPatchPrediction
from vitkit.training.pretraining.network import SelfSupervised
from vitkit.training.recipe import Recipe
from vitkit.training.setup import new_classifier


def check_encoder(config: Config, choices: Pretraining) -> ViTConfig:
    """The configuration, of a model that can learn so.

    Raises:
        VitkitError: what is hidden could be seen, or a part of the model would not be trained.
    """
    asked = f"--objective {choices.objective}"
    if not isinstance(config, ViTConfig):
        raise VitkitError(f"{asked}: {config.full_name} has no patches to hide; take a Vision Transformer")
    if config.stem is not None:
        raise VitkitError(
            f"{asked}: the stem of a hybrid sees beyond each patch, so nothing is hidden: take a plain ViT"
        )
    if config.distill_token or config.distill_head:
        raise VitkitError(f"{asked}: nothing teaches the distillation token; pre-train the model without it")
    if config.representation_size is not None:
        raise VitkitError(f"{asked}: nothing teaches the representation layer; leave out _in21k, or has_logits")
    if config.fc_norm:
        raise VitkitError(f"{asked}: this model normalises its pooled features alone (fc_norm), and patches are needed")
    if choices.objective == "mae" and (why := needs_every_patch(config)) is not None:
        raise VitkitError(f"{asked}: {why}; take --objective masked-patch")
    return config


def new_encoder(
    recipe: Recipe, choices: Pretraining, table: ImageTable, data_hash: str, progress: Progress
) -> Classifier:
    """A model without a head, before its pre-training; the same for the same seed."""
    encoder = new_classifier(recipe, replace(table, classes=(), sets=()), data_hash, progress)
    encoder.provenance["pretraining"] = choices.to_dict()
    return encoder


def network_of(encoder: VisionTransformer, preprocess: Preprocess, choices: Pretraining, seed: int) -> SelfSupervised:
    """What is trained, the same for the same seed.

    Raises:
        VitkitError: there are too few patches, or they cannot be divided.
    """
    torch.manual_seed(mix_seeds(seed, 1))
    if choices.objective == "mae":
        return SelfSupervised(encoder, MaskedAutoencoding(encoder.config, choices))
    return SelfSupervised(encoder, MaskedPatchPrediction(encoder.config, choices, preprocess))


def use_fused_attention(network: SelfSupervised, *, fused: bool) -> None:
    """One kernel for attention in the encoder and in the decoder, or attention written out."""
    for module in network.modules():
        if isinstance(module, Attention):
            module.fused = fused
