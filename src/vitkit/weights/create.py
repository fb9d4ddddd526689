"""A model by its name, with published weights or without."""

from __future__ import annotations

from typing import Any

from vitkit.model.build import Model, build, config_of
from vitkit.model.network_config import is_network_name
from vitkit.model.spellings import canonical
from vitkit.system.progress import Progress, silent
from vitkit.text.arguments import check_arguments
from vitkit.weights.loading import load
from vitkit.weights.meaning import Use


@check_arguments
def create_model(
    name: str,
    num_classes: int | None = None,
    *,
    pretrained: bool = False,
    progress: Progress = silent,
    **overrides: Any,
) -> Model:
    """A model of a known name, e.g. `create_model("vit_base_patch16_224", num_classes=5)`.

    Args:
        name: one of `list_models()`, or any other size, patch and resolution in the same grammar; with `pretrained`
            whatever `load` takes. `torchvision:resnet18` or `timm:NAME` is that library's own network.
        num_classes: length of the logits; None keeps the name's own (1000; 21,843 for `_in21k`), 0 is no head. A new
            head on published weights is all zeros (paper, sec. 3.2).
        pretrained: with the published weights that the name means for an answer, or with `num_classes` for training;
            they are downloaded once.
        progress: told of a download: what, bytes done, bytes in all.
        overrides: fields of `ViTConfig`, the aliases of `config.override`, and the spellings of timm and of the
            widespread scripts (`img_size`, `in_chans`, `embed_dim`, `depth`, `drop_path_rate`, `in_c`, ...).

    Raises:
        VitkitError: the name or an option is unknown (close ones are suggested), or a value cannot be built; the
            weights cannot be had, or an option would change their shapes.
    """
    options = dict(overrides) if is_network_name(name) else canonical(overrides)
    if not pretrained:
        return build(config_of(name, num_classes, **options))
    size = options.pop("image_size", None)
    use: Use = "answers" if num_classes is None else "training"
    return load(name, num_classes, size, use=use, progress=progress, **options).model
