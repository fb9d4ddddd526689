"""The Look tab: a model's prediction for a single picture, and the regions on which the prediction is based."""

from __future__ import annotations

import base64
import io
import threading
from collections import OrderedDict
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool

from vitkit.data import picture_of
from vitkit.errors import VitkitError
from vitkit.explanation import HEADS, METHODS
from vitkit.model_folder import DESCRIPTION
from vitkit.text import JOINT
from vitkit.webapp.workspace import Workspace

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from vitkit.classifier import Classifier
    from vitkit.inference import Prediction


_SIDE = 1200  # pixels of the longer side of a picture that is shown
_KEPT = 2  # models
_SHOWN = 20  # classes
_LIVE = 5  # classes of an answer to a frame of a camera
_WITH_METHODS = tuple(name for name in METHODS if name != HEADS)  # one map each


class Models:
    """The models of runs, which are opened on demand.

    The most recently used models stay open, and only one model computes at a time.
    """

    def __init__(self, workspace: Workspace) -> None:
        self._workspace, self._lock = workspace, threading.Lock()
        self._kept: OrderedDict[tuple[str, int], Classifier] = OrderedDict()

    def see(self, run: str, content: bytes) -> dict[str, Any]:
        """Return the prediction for a picture, the picture for display, and the available explanation methods.

        The grid of patches is None if the model has no attention that can be shown.
        """
        from vitkit.explanation import attending, can_explain, methods_for
        from vitkit.model import VisionTransformer

        with self._lock:
            classifier, prediction = self._predict(run, content)
            with picture_of("the picture", None, content) as picture:
                small, size, note = picture.image.copy(), picture.image.size, picture.doubt
        small.thumbnail((_SIDE, _SIDE))
        data = io.BytesIO()
        small.save(data, "JPEG", quality=88)
        model, is_multi = classifier.model, classifier.task == "multi"
        methods = methods_for(is_network=not isinstance(model, VisionTransformer))
        names = [name for name in _WITH_METHODS if name in methods]
        names = [name for name in names if not (is_multi and methods[name].of_rivals)]
        if not can_explain(model):
            names = [name for name in names if name == "occlusion"]
        grid = list(model.config.grid) if isinstance(model, VisionTransformer) and attending(model.config) else None
        return {
            "label": prediction.label,
            "confidence": prediction.confidence,
            "top": [{"label": label, "confidence": share} for label, share in prediction.ranking[:_SHOWN]],
            "note": note or "",
            "familiar": prediction.familiar,
            "classes": len(classifier.classes),
            "multi": is_multi,
            "picture": "data:image/jpeg;base64," + base64.b64encode(data.getvalue()).decode(),
            "size": list(size),
            "box": _parts(classifier.preprocess.box(*size), size),
            "methods": [{"name": name, "tells": methods[name].tells} for name in names],
            "grid": grid,
        }

    def answer(self, run: str, content: bytes) -> dict[str, Any]:
        """Return the most probable classes of a camera frame, with its familiarity."""
        with self._lock:
            classifier, prediction = self._predict(run, content)
        place = {name: i for i, name in enumerate(classifier.classes)}
        chosen = (prediction.label or "").split(JOINT) if classifier.task == "multi" else [prediction.label]
        top = [
            {"label": label, "confidence": confidence, "chosen": label in chosen, "place": place[label]}
            for label, confidence in prediction.ranking[:_LIVE]
        ]
        whole = {"label": prediction.label, "confidence": prediction.confidence, "familiar": prediction.familiar}
        return {**whole, "top": top}

    def map(self, run: str, content: bytes, method: str, target: str) -> dict[str, Any]:
        """Compute a map of the regions of a picture that speak for a class.

        The result contains a grid of values from 0 to 255, and the area of the picture that the grid covers.
        """
        if method not in _WITH_METHODS:
            raise VitkitError("webapp.method-unknown", f"{method!r} is none of {', '.join(_WITH_METHODS)}")
        with self._lock:
            explanation = self._open(run).explain(content, method, target)
        values, box = explanation.maps[method], _parts(explanation.box, explanation.photograph.size)
        return {
            "map": _levels(values),
            "box": box,
            "target": explanation.target,
            "probability": explanation.probability,
        }

    def patch(self, run: str, content: bytes, row: int, column: int) -> dict[str, Any]:
        """Return the attention from one patch to all patches, as grids of values 0 to 255.

        There is one for each layer and head (`layers`), and one for each layer: the mean of its heads (`means`).
        """
        import torch

        from vitkit.explanation import attending, patch_attention
        from vitkit.model import vit_of

        with self._lock:
            classifier = self._open(run)
            model = vit_of(classifier.model, "attention")
            images = torch.from_numpy(_pixels(classifier, content)[None])  # (1, C, height, width)
            weights = patch_attention(model, images, row, column).numpy()
        layers = [[_levels(head) for head in layer] for layer in weights]
        means = [_levels(layer.mean(axis=0)) for layer in weights]
        return {"layers": layers, "means": means, "numbers": attending(model.config)}

    def _predict(self, run: str, content: bytes) -> tuple[Classifier, Prediction]:
        from vitkit.inference import join

        classifier = self._open(run)
        ((_, row),) = join(["the picture"], [_pixels(classifier, content)], classifier.assess)
        prediction = classifier.prediction(run, row)
        if prediction.error is not None:
            raise VitkitError("webapp.photograph-unreadable", prediction.error)
        return classifier, prediction

    def _open(self, run: str) -> Classifier:
        from vitkit.weights import load

        folder = self._workspace.run_folder(run)
        if not (folder / DESCRIPTION).is_file():
            reason = f"{run} has no model yet: the first one is saved after the first epoch"
            raise VitkitError("webapp.model-missing", reason)
        key = (run, (folder / DESCRIPTION).stat().st_mtime_ns)
        if key not in self._kept:
            self._kept[key] = load(folder)
        self._kept.move_to_end(key)
        while len(self._kept) > _KEPT:
            self._kept.popitem(last=False)
        return self._kept[key]


@lru_cache(maxsize=1)  # one workspace is open at a time
def models_of(workspace: Workspace) -> Models:
    """Return the loaded models of a workspace. All tabs use the same ones."""
    return Models(workspace)


def _pixels(classifier: Classifier, content: bytes) -> npt.NDArray[np.float32]:  # (C, height, width)
    with picture_of("the picture", classifier.preprocess.short_side, content) as picture:
        return classifier.preprocess(picture.image)


def _levels(values: npt.NDArray[np.float32]) -> list[list[int]]:
    """Scale values (h, w) to whole numbers from 0 to 255; negative values become 0."""
    import numpy as np

    positive = np.maximum(values, 0)
    most = float(positive.max())
    levels: list[list[int]] = np.round(positive * (255 / most if most > 0 else 0)).astype(int).tolist()
    return levels


def _parts(box: tuple[float, float, float, float], size: tuple[int, int]) -> list[float]:
    """Convert a box (left, top, right, bottom) from pixels to fractions of the picture's width and height."""
    width, height = size
    return [box[0] / width, box[1] / height, box[2] / width, box[3] / height]


def router(workspace: Workspace) -> APIRouter:
    """Return the routes of the tab. Each request contains its picture; none is stored."""
    routes, models = APIRouter(prefix="/api/look"), models_of(workspace)

    @routes.get("/models")
    def show_models() -> dict[str, Any]:
        return {"models": workspace.model_names()}

    @routes.post("/see")
    async def see(run: str, request: Request) -> dict[str, Any]:
        return await run_in_threadpool(models.see, run, await picture_in(request))

    @routes.post("/map")
    async def show_map(run: str, method: str, request: Request, target: str = "top") -> dict[str, Any]:
        return await run_in_threadpool(models.map, run, await picture_in(request), method, target)

    @routes.post("/patch")
    async def patch(run: str, row: int, column: int, request: Request) -> dict[str, Any]:
        return await run_in_threadpool(models.patch, run, await picture_in(request), row, column)

    return routes


async def picture_in(request: Request) -> bytes:
    """Return the body of a request, which is a picture."""
    content = await request.body()
    if not content:
        raise VitkitError("webapp.picture-missing", "there is no picture: choose one, drop it here, or paste it")
    return content
