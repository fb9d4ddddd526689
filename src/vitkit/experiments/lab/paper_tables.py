"""Accuracies that the paper prints in its appendix C, for the pictures next to our own.

All are top-1 accuracies on ImageNet after fine-tuning at 384 pixels, in percent. Importing this module does not import
torch.
"""

from __future__ import annotations

from vitkit.experiments.lab.experiment import PaperFigure

# Table 6: model, exaFLOPs of the pre-training on JFT-300M, accuracy.
_SCALING = {
    "ViT": (
        ("ViT-B/32", 55, 80.73),
        ("ViT-L/32", 196, 84.37),
        ("ViT-B/16", 224, 84.15),
        ("ViT-L/16", 783, 86.30),
        ("ViT-L/16, 14 epochs", 1567, 87.12),
        ("ViT-H/14, 14 epochs", 4262, 88.08),
    ),
    "hybrid": (
        ("R50x1+ViT-B/32", 106, 84.90),
        ("R50x1+ViT-L/32", 246, 85.68),
        ("R50x1+ViT-B/16", 274, 85.58),
        ("R50x1+ViT-L/16", 859, 86.60),
        ("R50x1+ViT-L/16, 14 epochs", 1668, 87.12),
    ),
    "ResNet": (
        ("ResNet50x1", 50, 77.54),
        ("ResNet101x1", 96, 80.67),
        ("ResNet152x1", 141, 81.88),
        ("ResNet50x2", 199, 82.12),
        ("ResNet152x2", 563, 84.97),
        ("ResNet152x2, 14 epochs", 1126, 85.56),
        ("ResNet200x3, 14 epochs", 3306, 87.22),
    ),
}
SCALING = PaperFigure(
    caption="In the paper (Figure 5, numbers of Table 6)",
    x="exaFLOPs of the pre-training on JFT-300M",
    y="top-1 accuracy on ImageNet",
    lines={name: tuple((flops, accuracy) for _, flops, accuracy in rows) for name, rows in _SCALING.items()},
)

# Table 5: accuracy after pre-training on ImageNet, on ImageNet-21k and on JFT-300M. ViT-H/14 has none on ImageNet.
_IMAGES = {"ImageNet": 1.3e6, "ImageNet-21k": 14e6, "JFT-300M": 303e6}
_BY_DATA = {
    "ViT-B/32": (73.38, 81.28, 80.73),
    "ViT-B/16": (77.91, 83.97, 84.15),
    "ViT-L/32": (71.16, 80.99, 84.37),
    "ViT-L/16": (76.53, 85.15, 87.12),
    "ViT-H/14": (None, 85.13, 88.04),
}
BY_DATA = PaperFigure(
    caption="In the paper (Figure 3, numbers of Table 5)",
    x="pre-trained on",
    y="top-1 accuracy on ImageNet",
    lines={
        name: tuple((x, value) for x, value in zip(_IMAGES.values(), values, strict=True) if value is not None)
        for name, values in _BY_DATA.items()
    },
    ticks=_IMAGES,
)
