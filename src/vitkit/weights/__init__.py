"""Load any published Vision Transformer exactly, or report why it cannot be loaded.

Open `loading.py` first. It reads the names and shapes in a checkpoint (`checkpoint.py`), recognises its layout
(`formats/`, one module per publisher), infers the configuration (`infer.py`), accounts for every tensor (`layout.py`),
and adapts the tensors to the requested image size and classes (`adapt.py`). The values are read last, directly into a
model whose weights were not initialised. `catalog.py` lists the published weights, and `download.py` fetches them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitkit.system import lazily

if TYPE_CHECKING:
    from vitkit.weights.adapt import resize_grid, resize_offsets, resize_patch
    from vitkit.weights.catalog import CATALOG, COLUMNS, FILE, Entry, Use, choose_weights, class_names, facts_of, find
    from vitkit.weights.catalog import imagenet_synsets, is_hub_id, names, search, suggest, tags_of, unique, weights_for
    from vitkit.weights.checkpoint import Checkpoint, StoredTensor, read_checkpoint
    from vitkit.weights.download import cache_path, fetch_hub, fetch_url
    from vitkit.weights.formats.export import check_expressible, write
    from vitkit.weights.formats.torchvision import recognise
    from vitkit.weights.loading import create_model, fetch, inspect as inspect, load as load, locate as locate
    from vitkit.weights.origin import SourceWeights, read_foreign, shapes_of
    from vitkit.weights.preprocessing import preprocess_of
else:
    __getattr__ = lazily(__name__)
