"""Call the Core ML model on a Mac: `pip install coremltools numpy`."""

from pathlib import Path

import coremltools
import numpy as np
import numpy.typing as npt

_MODEL = coremltools.models.MLModel(str(Path(__file__).with_name("model.mlpackage")))


def logits(images: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Compute logits (B, K) of preprocessed images (B, C, height, width) in float32, one image at a time."""
    return np.concatenate([_MODEL.predict({"images": image[None]})["logits"] for image in images])
