"""The forms of what a server answers, for its OpenAPI description. Tests hold real answers against them."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class _Form(BaseModel):
    model_config = ConfigDict(extra="forbid", protected_namespaces=())


class Refused(_Form):
    """Why there is no answer."""

    error: str


class Place(_Form):
    """A class with its probability."""

    label: str
    confidence: float


class PredictionForm(_Form):
    """What the model says of one picture; the fields are those of `vitkit predict -o FILE.jsonl`."""

    path: str
    label: str | None
    confidence: float | None
    top: list[Place] = []
    rejected: str | None = None
    error: str | None = None
    note: str | None = None


class PredictionsForm(_Form):
    """A row for each picture, in their order."""

    model: str
    version: str
    predictions: list[PredictionForm]


class EmbeddingForm(_Form):
    """What the model sees in one picture, as a vector; of `patches`, one a patch."""

    path: str
    features: list[float] | list[list[float]] | None
    error: str | None = None


class EmbeddingsForm(_Form):
    """A row for each picture, in their order."""

    model: str
    version: str
    what: str
    embeddings: list[EmbeddingForm]


class ExplanationForm(_Form):
    """Where in a picture a class comes from.

    `maps` has a grid of patches for each method, `box` what the model saw of the picture, as left, top, right and
    bottom in pixels, `heads` for each of `layers` a grid for each head.
    """

    model: str
    version: str
    target: str
    probability: float
    top: list[Place]
    size: list[int]
    box: list[float]
    maps: dict[str, list[list[float]]]
    layers: list[int] = []
    heads: list[list[list[list[float]]]] | None = None


class ModelForm(_Form):
    """A model, and what it can be asked."""

    name: str
    version: str
    classes: list[str]
    task: str
    backend: str
    precision: str
    image_size: list[int]
    batch: int
    answers: list[str]


class ModelsForm(_Form):
    """The first is asked where none is named."""

    models: list[ModelForm]


class StateForm(_Form):
    """How the server is."""

    status: str
