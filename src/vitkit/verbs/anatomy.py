"""`vitkit.explain` of the model itself: filters, positions and attention distances, as in the paper's figures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from html import escape
from math import log2
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from vitkit.errors import VitkitError
from vitkit.system.files import without_place
from vitkit.system.progress import Progress
from vitkit.verbs.result import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor

    from vitkit.classifier import Classifier

_MOST_IMAGES = 128  # for attention distances, as in the paper (app. D.7)


@dataclass(frozen=True, repr=False)
class Anatomy(Result):
    """What a model is like inside.

    Attributes:
        page: the page with all figures; beside it each as a PNG, and `anatomy.npz` with the numbers.
        arrays: the numbers of each figure, by its name.
        told: what there is to say of the images, of figures that there are none of, and of the positions.
        notes: what had to be assumed of the model, and what could not be looked into.
    """

    page: Path
    arrays: dict[str, Any] = field(compare=False)
    told: tuple[str, ...]
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types; the numbers themselves are in the arrays."""
        return {"page": str(self.page), "figures": list(self.arrays), "told": list(self.told)}

    def lines(self) -> list[str]:
        """What there is to say, and what was drawn."""
        return [*self.told, self._drawn]

    @property
    def _drawn(self) -> str:
        return f"{', '.join(self.arrays)}: {self.page}"

    def __repr__(self) -> str:
        return f"<Anatomy: {self._drawn}>"


def draw_anatomy(classifier: Classifier, paths: list[str], out: Path, progress: Progress) -> Anatomy:
    """Draw what the model allows into the folder `out`; without images, what needs none.

    Raises:
        VitkitError: there is nothing that can be drawn, or none of the images can be read.
    """
    from vitkit.explanation.draw import to_png
    from vitkit.model.build import vit_of
    from vitkit.model.computing import evaluating
    from vitkit.text.html import image, write_page

    vit_of(classifier.model, "--anatomy")
    images, said = _read_images(classifier, paths, progress)
    pieces: list[str] = []
    arrays: dict[str, Any] = {}
    for name, part in _parts(classifier, images).items():
        try:
            with evaluating(classifier.model):
                values = part.compute()
            png = to_png(part.draw(values))
        except VitkitError as error:  # what one model lacks, another has
            said.append(f"no {name}: {error}")
            continue
        arrays[name] = values
        _write(out / f"{name}.png", png)
        pieces += [f"<h2>{name.replace('_', ' ')}</h2><p>{part.tells}</p>", image(name, png, "png")]
    if not arrays:
        raise VitkitError("; ".join(said))
    _save_arrays(out / "anatomy.npz", arrays)
    said += _contrast(arrays)
    head = ["<h1>Anatomy</h1>", *(f"<p>{escape(line)}</p>" for line in said)]
    page = out / "index.html"
    write_page(page, "vitkit explain: anatomy", [*head, *pieces])
    return Anatomy(page, arrays, tuple(said))


def _read_images(classifier: Classifier, paths: list[str], progress: Progress) -> tuple[Tensor | None, list[str]]:
    """What the model is shown, (B, C, height, width), and what there is to say of it."""
    import torch

    from vitkit.data.decode import UnreadableImageError

    if not paths:
        return None, ["no SRC: filters and positions only; what depends on images needs some"]
    chosen = (
        [paths[i * len(paths) // _MOST_IMAGES] for i in range(_MOST_IMAGES)] if len(paths) > _MOST_IMAGES else paths
    )
    images, said = [], []
    for done, path in enumerate(chosen, 1):
        try:
            images.append(classifier.read(path))
        except UnreadableImageError as error:
            said.append(f"{without_place(path)}: {error}")
        progress("reading", done, len(chosen))
    if not images:
        raise VitkitError(f"none of the {len(chosen)} images can be read; the first: {said[0]}")
    which = "" if chosen is paths else f" of {len(paths)}, evenly spread"
    return torch.stack(images), [*said, f"{len(images)} images{which}"]


class _Part(NamedTuple):
    """A figure of the model: what it tells, its numbers, and how they are drawn."""

    tells: str
    compute: Callable[[], Any]
    draw: Callable[[Any], Figure]


def _parts(classifier: Classifier, images: Tensor | None) -> dict[str, _Part]:
    from vitkit.explanation import model_analysis as anatomy
    from vitkit.explanation import model_figures
    from vitkit.model.build import vit_of

    model = vit_of(classifier.model, "--anatomy")
    parts = {
        "filters": _Part(
            "The directions in which the patch embedding's filters differ most: what a patch is first looked at for.",
            lambda: anatomy.filter_components(model),
            model_figures.filters,
        ),
        "positions": _Part(
            "Each small picture is one position: how alike its embedding is to every other's. "
            "Nobody told the model that patches lie in rows and columns.",
            lambda: anatomy.position_similarity(model),
            model_figures.position_grid,
        ),
    }
    return parts if images is None else parts | _parts_of_images(classifier, images)


def _parts_of_images(classifier: Classifier, images: Tensor) -> dict[str, _Part]:
    from vitkit.explanation import model_analysis as anatomy
    from vitkit.explanation import model_figures
    from vitkit.model.build import vit_of

    model = vit_of(classifier.model, "--anatomy")
    return {
        "attention_distance": _Part(
            "How far each head looks, on average: low dots see the neighbourhood, high ones the whole picture.",
            lambda: anatomy.attention_distance(model, images),
            lambda values: model_figures.by_head(values, "Attention distance", "pixels of the input"),
        ),
        "attention_entropy": _Part(
            f"Over how many tokens each head spreads: 0 bits is one alone, {log2(model.config.tokens):.1f} all alike.",
            lambda: anatomy.attention_entropy(model, images),
            lambda values: model_figures.by_head(values, "Attention entropy", "bits"),
        ),
        "token_norms": _Part(
            "Patches far longer than the rest are artefacts: notes of the model's own that say nothing of the picture.",
            lambda: anatomy.norms_by_layer(model, images),
            lambda values: model_figures.norms(values, model.config.prefix_tokens),
        ),
        "layer_similarity": _Part(
            "Linear CKA: 1 where two layers represent these images alike, 0 where they have nothing in common.",
            lambda: anatomy.layer_similarity(model, images),
            model_figures.layer_grid,
        ),
    }


def _contrast(arrays: dict[str, Any]) -> list[str]:
    """Whether positions know rows and columns, in a line."""
    from vitkit.explanation.model_analysis import row_and_column_contrast

    if "positions" not in arrays:
        return []
    row, column, neither = row_and_column_contrast(arrays["positions"])
    return [
        f"position similarity: {row:.2f} in the same row, {column:.2f} in the same column, {neither:.2f} in neither"
    ]


def _write(path: Path, data: bytes) -> None:
    from vitkit.system.files import replacing

    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        temporary.write_bytes(data)


def _save_arrays(path: Path, arrays: dict[str, Any]) -> None:
    import numpy as np

    from vitkit.system.files import replacing

    with replacing(path) as temporary, temporary.open("wb") as file:
        np.savez(file, **arrays)
