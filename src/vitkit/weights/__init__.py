"""Load any published Vision Transformer exactly, or report why it cannot be loaded.

Open `loading.py` first. It reads the names and shapes in a checkpoint (`checkpoint.py`), recognises its layout
(`formats/`, one module per publisher), infers the configuration (`infer.py`), accounts for every tensor (`layout.py`),
and adapts the tensors to the requested image size and classes (`adapt.py`). The values are read last, directly into a
model whose weights were not initialised. `catalog.py` lists the published weights, and `download.py` fetches them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitkit.system import public

if TYPE_CHECKING:
    from vitkit.weights.loading import inspect, load, locate

__all__ = ["inspect", "load", "locate"]

_, __getattr__ = public(
    __name__,
    {
        "adapt": "resize_grid resize_offsets resize_patch",
        "catalog": (
            "CATALOG COLUMNS Entry FILE Use class_names facts_of find find_published imagenet_synsets is_hub_id "
            "meaning_of names search suggest tagged tags tags_of unique weights_for"
        ),
        "checkpoint": "Checkpoint StoredTensor read_checkpoint",
        "download": "cache_path fetch_hub fetch_url",
        "formats.export": "refuse write",
        "formats.torchvision": "recognise",
        "loading": "create_model fetch inspect load locate",
        "origin": "SourceWeights read_foreign shapes_between shapes_of",
        "preprocessing": "preprocess_of",
    },
)
