"""Writing the layout of the reference implementation, one `.npz` file."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from vitkit.classifier import Classifier
from vitkit.system.files import replacing, to_json
from vitkit.weights.formats import google_npz
from vitkit.weights.formats.foreign import ours_of, refuse, said, tensors_under
from vitkit.weights.tucked import tuck_in

_COMMENT = 65535  # bytes that a zip file has room for


def write(classifier: Classifier, destination: Path) -> None:
    config = ours_of(classifier).config
    refuse(
        config,
        "npz",
        {
            "mlp_kind": ("mlp",),
            "layer_scale": (None,),
            "registers": (0,),
            "distill_token": (False,),
            "fc_norm": (False,),
            "qkv_bias": (True,),
            "norm_eps": (1e-6,),
            "stem_kind": ("reference",) if config.stem is not None else ("reference", "timm"),
            "class_token": (config.pool != "gap",),
            "pool": ("token", "gap"),
            "prefix_positions": (True,) if config.class_token else (True, False),
        },
    )
    arrays = {name: tensor.numpy() for name, tensor in tensors_under(classifier, google_npz.layout_for(config)).items()}
    with replacing(destination) as temporary:
        with temporary.open("wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
        tuck_in(temporary, classifier.pictures or b"", _comment(classifier))


def _comment(classifier: Classifier) -> bytes:
    """The note, where every reader of zip files passes it over."""
    note = said(classifier)
    if len(to_json({"vitkit": note}).encode()) > _COMMENT:
        del note["classes"]
    return to_json({"vitkit": note}).encode()
