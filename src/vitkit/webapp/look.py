"""The Look tab: a model's prediction for a single picture, and the regions on which the prediction is based."""

from __future__ import annotations

import base64
import io
import threading
from collections import OrderedDict
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request
from PIL import Image
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


_SIDE = 1200  # pixels of the longer side of a picture that is shown
_KEPT = 2  # models
_SHOWN = 20  # classes
_LIVE = 5  # classes of an answer to a frame of a camera
_WITH_METHODS = tuple(name for name in METHODS if name != HEADS)  # one map each
_LEVELS = 255


class Models:
    """The models of runs, which are opened on demand.

    The most recently used models stay open, and only one model computes at a time.
    """

    def __init__(self, workspace: Workspace) -> None:
        self._workspace, self._lock = workspace, threading.Lock()
        self._kept: OrderedDict[tuple[str, int], Classifier] = OrderedDict()

    def names(self) -> list[str]:
        """Return the names of the runs that have a model, newest first."""
        folder = self._workspace.runs
        return [name for name in self._workspace.run_names() if (folder / name / DESCRIPTION).is_file()]

    def see(self, run: str, content: bytes) -> dict[str, Any]:
        """Return the prediction for a picture, the picture for display, and the available explanation methods."""
        with self._lock:
            classifier = self._open(run)
            with picture_of("the picture", None, content) as picture:
                shown, size, doubt = _shown(picture.image), picture.image.size, picture.doubt
            box = _parts(classifier.preprocess.box(*size), size)
            prediction = classifier.prediction(run, _row(classifier, content))
        if prediction.error is not None:
            raise VitkitError(prediction.error)
        top = [{"label": label, "confidence": probability} for label, probability in prediction.ranking[:_SHOWN]]
        answer = {"label": prediction.label, "confidence": prediction.confidence, "top": top, "note": doubt or ""}
        answer["familiar"] = prediction.familiar
        more = {"classes": len(classifier.classes), "multi": classifier.task == "multi"}
        return {**answer, **more, "picture": shown, "size": list(size), "box": box, **_able(classifier)}

    def answer(self, run: str, content: bytes) -> dict[str, Any]:
        """Return the most probable classes of a camera frame, with its familiarity."""
        with self._lock:
            classifier = self._open(run)
            prediction = classifier.prediction(run, _row(classifier, content))
        if prediction.error is not None:
            raise VitkitError(prediction.error)
        chosen = (prediction.label or "").split(JOINT) if classifier.task == "multi" else [prediction.label]
        top = [
            {"label": label, "confidence": confidence, "chosen": label in chosen}
            for label, confidence in prediction.ranking[:_LIVE]
        ]
        whole = {"label": prediction.label, "confidence": prediction.confidence, "familiar": prediction.familiar}
        return {**whole, "top": top}

    def map(self, run: str, content: bytes, method: str, target: str) -> dict[str, Any]:
        """Compute a map of the regions of a picture that speak for a class.

        The result contains a grid of values from 0 to 255, and the area of the picture that the grid covers.
        """
        if method not in _WITH_METHODS:
            raise VitkitError(f"{method!r} is none of {', '.join(_WITH_METHODS)}")
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
        """Return the attention from one patch to all patches, for each layer and head, as grids of values 0 to 255."""
        from vitkit.explanation import attending, patch_attention
        from vitkit.model import vit_of

        with self._lock:
            classifier = self._open(run)
            model = vit_of(classifier.model, "attention")
            images, _ = _pixels(classifier, content)
            weights = patch_attention(model, images, row, column).numpy()
        layers = [[_levels(head) for head in layer] for layer in weights]
        return {"layers": layers, "numbers": attending(model.config)}

    def _open(self, run: str) -> Classifier:
        from vitkit.weights import load

        folder = self._workspace.run_folder(run)
        if not (folder / DESCRIPTION).is_file():
            raise VitkitError(f"{run} has no model yet: the first one is saved after the first epoch")
        key = (run, (folder / DESCRIPTION).stat().st_mtime_ns)
        if key not in self._kept:
            self._kept[key] = load(folder)
        self._kept.move_to_end(key)
        while len(self._kept) > _KEPT:
            self._kept.popitem(last=False)
        return self._kept[key]


@lru_cache(maxsize=1)  # one workspace is open at a time
def models_of(workspace: Workspace) -> Models:
    """Return the models of a workspace, which all tabs share."""
    return Models(workspace)


def _pixels(classifier: Classifier, content: bytes) -> tuple[Any, Any]:
    """Preprocess a picture for the model; return the pixels (1, C, height, width) as a tensor and as a NumPy array."""
    import torch

    with picture_of("the picture", classifier.preprocess.short_side, content) as picture:
        batch = classifier.preprocess(picture.image)[None]
    return torch.from_numpy(batch), batch


def _row(classifier: Classifier, content: bytes) -> npt.NDArray[np.float32] | str:
    from vitkit.inference import join

    (pixels,) = _pixels(classifier, content)[1]
    ((_, row),) = join(["the picture"], [pixels], classifier.assess)
    return row


def _able(classifier: Classifier) -> dict[str, Any]:
    """Return the available explanation methods with a description of their maps, and the grid of patches.

    The grid is None if the model has no attention that can be shown.
    """
    from vitkit.explanation import attending, can_explain, methods_for
    from vitkit.model import VisionTransformer

    model = classifier.model
    is_vit = isinstance(model, VisionTransformer)
    known = methods_for(is_network=not is_vit)
    names = [name for name in _WITH_METHODS if name in known]
    if not can_explain(model):
        names = [name for name in names if name == "occlusion"]
    if classifier.task == "multi":
        names = [name for name in names if not known[name].of_rivals]
    methods = [{"name": name, "tells": known[name].tells} for name in names]
    if not isinstance(model, VisionTransformer) or not attending(model.config):
        return {"methods": methods, "grid": None}
    return {"methods": methods, "grid": list(model.config.grid)}


def _levels(values: npt.NDArray[np.float32]) -> list[list[int]]:
    """Scale values (h, w) to whole numbers from 0 to 255; negative values become 0."""
    import numpy as np

    positive = np.maximum(values, 0)
    most = float(positive.max())
    levels: list[list[int]] = np.round(positive * (_LEVELS / most if most > 0 else 0)).astype(int).tolist()
    return levels


def _parts(box: tuple[float, float, float, float], size: tuple[int, int]) -> list[float]:
    """Convert a box (left, top, right, bottom) from pixels to fractions of the picture's width and height."""
    width, height = size
    return [box[0] / width, box[1] / height, box[2] / width, box[3] / height]


def _shown(picture: Image.Image) -> str:
    """Return a picture for the page, as a data URL."""
    small = picture.copy()
    small.thumbnail((_SIDE, _SIDE))
    data = io.BytesIO()
    small.save(data, "JPEG", quality=88)
    return "data:image/jpeg;base64," + base64.b64encode(data.getvalue()).decode()


def router(workspace: Workspace) -> APIRouter:
    """Return the routes of the tab. Each request contains its picture; none is stored."""
    routes, models = APIRouter(prefix="/api/look"), models_of(workspace)

    @routes.get("/models")
    def show_models() -> dict[str, Any]:
        return {"models": models.names()}

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
    """Return the body of a request, which is a picture.

    Raises:
        VitkitError: the request is empty.
    """
    content = await request.body()
    if not content:
        raise VitkitError("there is no picture: choose one, drop it here, or paste it")
    return content
