"""The Vision Transformer of the paper (arXiv 2010.11929), its variants, and networks of other libraries.

Open `vit.py` first: it is the paper, equation by equation. `config.py` holds every architectural choice, `names.py` the
names that stand for configurations, and `build.py` creates a model from either. The layers are in `layers.py`,
`position.py` and `hybrids.py`; `network.py` wraps models of torchvision and timm.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitkit.system import lazily

if TYPE_CHECKING:
    from vitkit.model.build import Model, build_with_weights, classes_and_features, config_of, read_features
    from vitkit.model.build import stored_weights, vit_of, with_features
    from vitkit.model.config import IMAGENET_1K, Features, Position, PositionResize, StemKind, ViTConfig, canonical
    from vitkit.model.config import stride_of, suggest
    from vitkit.model.hybrids import ResNet, ResNetStem, StandardisedConv2d, pad_same
    from vitkit.model.layers import DropPath as DropPath, Dropout, Head, random_bits, survives
    from vitkit.model.names import IMAGENET_21K, MIXTURES, NetworkConfig, config_for, is_model_name, is_network_name
    from vitkit.model.names import list_models, split_network
    from vitkit.model.network import Network
    from vitkit.model.parts import drop_path
    from vitkit.model.position import RelativePosition, sincos_1d, sincos_2d
    from vitkit.model.variants import WRITTEN
    from vitkit.model.vit import MLP, Attention, Block, VisionTransformer
else:
    __getattr__ = lazily(__name__)
