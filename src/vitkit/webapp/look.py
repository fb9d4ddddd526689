"""The Look tab: a model's prediction for a single picture, and the regions on which the prediction is based."""

from __future__ import annotations

import base64
import io
import threading
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool

from vitkit.data import picture_of
from vitkit.errors import VitkitError
from vitkit.explanation import HEADS, METHODS
from vitkit.model_folder import DESCRIPTION
from vitkit.text import JOINT
from vitkit.webapp.photographs import file_cache
from vitkit.webapp.workspace import Workspace

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from vitkit.classifier import Classifier
    from vitkit.inference import Prediction


_SIDE = 1200  # pixels of the longer side of a picture that is shown
_MAX_CLASSES, _MAX_LIVE_CLASSES = 20, 5  # in the answer about a picture, and about a frame of a camera
_MAP_METHODS = tuple(name for name in METHODS if name != HEADS)  # explanation methods that compute one map


class Models:
    """The models of runs, which are opened on demand.

    The most recently used models stay open, and only one model computes at a time.
    """

    def __init__(self, workspace: Workspace) -> None:
        self._workspace, self._lock = workspace, threading.Lock()
        self._load = file_cache(_load, size=2)

    def predict(self, run: str, content: bytes) -> dict[str, Any]:
        """Return the prediction for a picture, the picture for display, and the available explanation methods.

        The grid of patches is None if the model has no attention that can be shown.
        """
        from vitkit.explanation import attention_layers, can_explain, methods_for
        from vitkit.model import VisionTransformer

        with self._lock:
            classifier, prediction = self._predict(run, content)
            with picture_of("the picture", None, content) as picture:
                image, size, note = picture.image.copy(), picture.image.size, picture.doubt
        image.thumbnail((_SIDE, _SIDE))
        jpeg = io.BytesIO()
        image.save(jpeg, "JPEG", quality=88)
        model, is_multi = classifier.model, classifier.task == "multi"
        known = methods_for(is_network=not isinstance(model, VisionTransformer))
        methods = [known[name] for name in (_MAP_METHODS if can_explain(model) else ("occlusion",)) if name in known]
        if is_multi:
            methods = [method for method in methods if not method.compares_classes]
        grid = None
        if isinstance(model, VisionTransformer) and attention_layers(model.config):
            grid = list(model.config.grid)
        return {
            "label": prediction.label,
            "confidence": prediction.confidence,
            "top": [{"label": label, "confidence": share} for label, share in prediction.ranking[:_MAX_CLASSES]],
            "note": note or "",
            "familiar": prediction.familiar,
            "classes": len(classifier.classes),
            "multi": is_multi,
            "picture": "data:image/jpeg;base64," + base64.b64encode(jpeg.getvalue()).decode(),
            "size": list(size),
            "box": _as_fractions(classifier.preprocess.box(*size), size),
            "methods": [{"name": method.name, "tells": method.description} for method in methods],
            "grid": grid,
        }

    def classify_frame(self, run: str, content: bytes) -> dict[str, Any]:
        """Return the most probable classes of a camera frame, with its familiarity."""
        with self._lock:
            classifier, prediction = self._predict(run, content)
        index = {name: i for i, name in enumerate(classifier.classes)}
        chosen = (prediction.label or "").split(JOINT) if classifier.task == "multi" else [prediction.label]
        top = [
            {"label": label, "confidence": confidence, "chosen": label in chosen, "place": index[label]}
            for label, confidence in prediction.ranking[:_MAX_LIVE_CLASSES]
        ]
        answer = {"label": prediction.label, "confidence": prediction.confidence, "familiar": prediction.familiar}
        return {**answer, "top": top}

    def explain(self, run: str, content: bytes, method: str, target: str) -> dict[str, Any]:
        """Compute a map of the regions of a picture that speak for a class.

        The result contains a grid of values from 0 to 255, and the area of the picture that the grid covers.
        """
        if method not in _MAP_METHODS:
            raise VitkitError("webapp.method-unknown", f"{method!r} is none of {', '.join(_MAP_METHODS)}")
        with self._lock:
            explanation = self._open(run).explain(content, method, target)
        values, box = explanation.maps[method], _as_fractions(explanation.box, explanation.photograph.size)
        return {
            "map": _to_uint8(values),
            "box": box,
            "target": explanation.target,
            "probability": explanation.probability,
        }

    def attend(self, run: str, content: bytes, row: int, column: int) -> dict[str, Any]:
        """Return the attention from one patch to all patches, as grids of values 0 to 255.

        `layers` has a grid for each head of each layer, `means` the mean of the heads of each layer, and `numbers` the
        numbers of these layers.
        """
        import torch

        from vitkit.explanation import attention_layers, patch_attention
        from vitkit.model import vit_of

        with self._lock:
            classifier = self._open(run)
            model = vit_of(classifier.model, "attention")
            images = torch.from_numpy(_pixels(classifier, content)[None])  # (1, C, height, width)
            weights = patch_attention(model, images, row, column).numpy()
        layers = [[_to_uint8(head) for head in layer] for layer in weights]
        means = [_to_uint8(layer.mean(axis=0)) for layer in weights]
        return {"layers": layers, "means": means, "numbers": attention_layers(model.config)}

    def _predict(self, run: str, content: bytes) -> tuple[Classifier, Prediction]:
        from vitkit.inference import compute_batch

        classifier = self._open(run)
        ((_, row),) = compute_batch(["the picture"], [_pixels(classifier, content)], classifier.assessing())
        prediction = classifier.prediction(run, row)
        if prediction.error is not None:
            raise VitkitError("webapp.photograph-unreadable", prediction.error)
        return classifier, prediction

    def _open(self, run: str) -> Classifier:
        description = self._workspace.run_folder(run) / DESCRIPTION
        if not description.is_file():
            reason = f"{run} has no model yet: the first one is saved after the first epoch"
            raise VitkitError("webapp.model-missing", reason)
        return self._load(description)


def _load(description: Path) -> Classifier:
    from vitkit.weights import load  # loads torch

    return load(description.parent)


@lru_cache(maxsize=1)  # one workspace is open at a time
def models_of(workspace: Workspace) -> Models:
    """Return the loaded models of a workspace. All tabs use the same ones."""
    return Models(workspace)


def _pixels(classifier: Classifier, content: bytes) -> npt.NDArray[np.float32]:  # (C, height, width)
    with picture_of("the picture", classifier.preprocess.short_side, content) as picture:
        return classifier.preprocess(picture.image)


def _to_uint8(values: npt.NDArray[np.float32]) -> list[list[int]]:
    """Scale values (h, w) to whole numbers from 0 to 255; negative values become 0."""
    import numpy as np

    positive = np.maximum(values, 0)
    highest = float(positive.max())
    scale = 255 / highest if highest > 0 else 0
    grid: list[list[int]] = np.round(positive * scale).astype(int).tolist()
    return grid


def _as_fractions(box: tuple[float, float, float, float], size: tuple[int, int]) -> list[float]:
    """Convert a box (left, top, right, bottom) from pixels to fractions of the picture's width and height."""
    width, height = size
    return [box[0] / width, box[1] / height, box[2] / width, box[3] / height]


def router(workspace: Workspace) -> APIRouter:
    """Return the routes of the tab. Each request contains its picture; none is stored."""
    routes, models = APIRouter(prefix="/api/look"), models_of(workspace)

    @routes.get("/models")
    def show_models() -> dict[str, Any]:
        return {"models": workspace.classifier_names()}

    @routes.post("/see")
    async def see(run: str, request: Request) -> dict[str, Any]:
        return await run_in_threadpool(models.predict, run, await read_picture(request))

    @routes.post("/map")
    async def show_map(run: str, method: str, request: Request, target: str = "top") -> dict[str, Any]:
        return await run_in_threadpool(models.explain, run, await read_picture(request), method, target)

    @routes.post("/patch")
    async def patch(run: str, row: int, column: int, request: Request) -> dict[str, Any]:
        return await run_in_threadpool(models.attend, run, await read_picture(request), row, column)

    return routes


async def read_picture(request: Request) -> bytes:
    """Return the body of a request, which is a picture."""
    content = await request.body()
    if not content:
        raise VitkitError("webapp.picture-missing", "there is no picture: choose one, drop it here, or paste it")
    return content
