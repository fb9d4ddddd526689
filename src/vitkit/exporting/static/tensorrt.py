"""Call the model with TensorRT: `pip install tensorrt polygraphy numpy`. The first call builds model.engine."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
from polygraphy.backend.common import BytesFromPath
from polygraphy.backend.trt import (
    CreateConfig,
    EngineFromBytes,
    Profile,
    TrtRunner,
    engine_from_network,
    network_from_onnx_path,
    save_engine,
)

_ONNX, _ENGINE = (Path(__file__).with_name(name) for name in ("model.onnx", "model.engine"))
_BATCHES = (1, 8, 32)  # the smallest, the one that is optimised, and the largest


def build(shape: tuple[int, ...]) -> None:
    """Build the engine for images of a shape (C, height, width), on the GPU that will run it."""
    sizes = {name: (batch, *shape) for name, batch in zip(("min", "opt", "max"), _BATCHES, strict=True)}
    config = CreateConfig(profiles=[Profile().add("images", **sizes)], tf32=False)
    save_engine(engine_from_network(network_from_onnx_path(str(_ONNX)), config=config), path=str(_ENGINE))


def logits(images: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Compute logits (B, K) of preprocessed images (B, C, height, width) in float32."""
    if not _ENGINE.is_file():
        build(images.shape[1:])
    pieces = [np.ascontiguousarray(images[i : i + _BATCHES[-1]]) for i in range(0, len(images), _BATCHES[-1])]
    with TrtRunner(EngineFromBytes(BytesFromPath(str(_ENGINE)))) as runner:
        return np.concatenate([runner.infer({"images": piece})["logits"].copy() for piece in pieces])
