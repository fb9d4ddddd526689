"""Writing CLIP's and SigLIP's image encoders in the layout of Hugging Face's transformers."""

from __future__ import annotations

from typing import Any

from vitkit.classifier import Classifier
from vitkit.model.config import ViTConfig
from vitkit.weights.formats import huggingface_towers
from vitkit.weights.formats.foreign import Files, one, ours_of, refuse, tensors_under
from vitkit.weights.formats.huggingface_described import ACTIVATIONS, processor


def tower_files(classifier: Classifier) -> Files:
    """The tensors of the image encoder, and what describes them.

    Raises:
        VitkitError: neither of the two has this model's parts; a head has no place in them.
    """
    config = ours_of(classifier).config
    family = huggingface_towers.family_of(config)
    is_clip = family == "clip"
    refuse(
        config,
        "Hugging Face",
        {
            "num_classes": (0,),
            "embed_norm": (is_clip,),
            "patch_bias": (not is_clip,),
            "class_token": (is_clip,),
            "pool": ("token",) if is_clip else ("map",),
            "mlp_kind": ("mlp",),
            "stem": (None,),
            "fc_norm": (False,),
            "layer_scale": (None,),
            "representation_size": (None,),
            "prefix_positions": (True,) if is_clip else (True, False),
            "distill_token": (False,),
            "registers": (0,),
            "qkv_bias": (True,),
            "gelu": tuple(ACTIVATIONS),
        },
    )
    layout = huggingface_towers.layout_for(config)
    tensors = tensors_under(classifier, layout)
    if not is_clip:
        tensors |= huggingface_towers.whole_projections(ours_of(classifier).state_dict())
    described = _config(config, family)
    return tensors, {"config.json": described, "preprocessor_config.json": processor(classifier.preprocess)}


def _config(config: ViTConfig, family: str) -> dict[str, Any]:
    return {
        "architectures": ["CLIPVisionModel" if family == "clip" else "SiglipVisionModel"],
        "model_type": f"{family}_vision_model",
        "dtype": "float32",
        "hidden_size": config.hidden_size,
        "intermediate_size": config.mlp_size,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_channels": config.in_channels,
        "hidden_act": ACTIVATIONS[config.gelu],
        "layer_norm_eps": config.norm_eps,
        "image_size": one(config.image_size),
        "patch_size": one(config.patch_size),
    }
