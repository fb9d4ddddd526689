"""The Vision Transformer of the paper (arXiv 2010.11929), its variants, and networks of other libraries.

Open `vit.py` first: it is the paper, equation by equation. `config.py` holds every architectural choice, `names.py` the
names that stand for configurations, and `build.py` creates a model from either. The layers are in `layers.py`,
`position.py` and `hybrids.py`; `network.py` wraps models of torchvision and timm.
"""

from __future__ import annotations

from vitkit.system import public

__all__, __getattr__ = public(
    __name__,
    {
        "build": "classes_and_features config_of filled read_features with_features",
        "config": "IMAGENET_1K Position PositionResize StemKind ViTConfig canonical stride_of",
        "hybrids": "ResNet ResNetStem StandardisedConv2d pad_same",
        "layers": "DropPath Dropout Head random_bits survives",
        "names": "IMAGENET_21K MIXTURES config_for is_model_name list_models",
        "network": "Network",
        "parts": "drop_path",
        "position": "RelativePosition sincos_1d sincos_2d",
        "variants": "WRITTEN",
        "vit": "Attention Block MLP VisionTransformer",
    },
)
