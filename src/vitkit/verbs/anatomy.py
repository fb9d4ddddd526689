"""`vitkit.anatomy`: show what a model has learned, as in the paper: filters, positions and attention distances."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from vitkit.errors import VitkitError
from vitkit.system.files import public_path, replacing, write_bytes
from vitkit.system.progress import Progress, progress, silent
from vitkit.text.arguments import Only, check_arguments
from vitkit.text.cells import plural
from vitkit.verbs.explain import open_model_and_images
from vitkit.verbs.inputs import PREPROCESS, source_names
from vitkit.verbs.options import Compute
from vitkit.verbs.result import Notes, Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor

    from vitkit.classifier import Classifier
    from vitkit.model.vit import VisionTransformer
    from vitkit.weights.preprocessing import PreprocessLike

_MAX_IMAGES = 128  # for attention distances, as in the paper (app. D.7)


@check_arguments
def anatomy(
    model: str | Path | Classifier,
    sources: str | Path | Sequence[str | Path] = (),
    out: Path | str | None = None,
    *,
    preprocess: Annotated[str | PreprocessLike | None, PREPROCESS] = None,
    compute: Annotated[Compute, Only(("device",))] = Compute(),
    force: bool = False,
    progress: Progress = silent,
) -> Result:
    """Draw what a model has learned: its filters, positions and attention, as in the paper's Figures 7 and 11.

        import vitkit

        anatomy = vitkit.anatomy("runs/digits-1", "photos", out="anatomy")
        print(anatomy.page, {name: array.shape for name, array in anatomy.arrays.items()})

    On the command line: `vitkit explain runs/digits-1 photos -o anatomy --anatomy`.

    Args:
        model: a run or model folder, a checkpoint of any published layout, or a published name. A classifier in memory
            is accepted, too.
        sources: images, folders (including their sub-folders), or glob patterns. Without images, only the filters and
            positions are drawn.
        out: the folder to write to. It is required.
        preprocess: see `vitkit.load`.
        compute: the device to compute on.
        force: write to `out` even if it is not empty.
        progress: called with the current task, the number of finished items and the total number of items.

    Returns:
        A result with the facts `page` (with all figures; its folder has each figure as a PNG file, and their values in
        anatomy.npz), `arrays` (the values of each figure, by its name), `remarks` (about the images, and about
        figures that this model lacks) and `notes`.

    Raises:
        VitkitError: the model cannot be loaded, there is no figure that can be drawn, none of the images can be read,
            or `out` cannot be written to.
    """
    import numpy as np

    from vitkit.explanation.draw import to_png
    from vitkit.model.build import vit_of
    from vitkit.model.layers import evaluating
    from vitkit.text.pages import image, panel, panels, write_page

    names, notes = source_names(sources), Notes()
    if out is None:
        raise VitkitError("verbs.out-missing", "no folder to write to: add --out DIR")
    folder = Path(out)
    with open_model_and_images(model, names, [folder], notes, preprocess, compute, force=force) as (classifier, paths):
        network = vit_of(classifier.model, "an anatomy")
        images, remarks = _read_images(classifier, paths)
        folder.mkdir(parents=True, exist_ok=True)
        html: list[str] = []
        arrays: dict[str, Any] = {}
        for name, figure in _figures(network, images).items():
            try:
                with evaluating(network):
                    values = figure.compute()
                png = to_png(figure.draw(values))
            except VitkitError as error:  # not every model has every figure
                remarks.append(f"no {name}: {error}")
                continue
            arrays[name] = values
            write_bytes(folder / f"{name}.png", png)
            picture = image(name, png, "png")
            html.append(panel(name.replace("_", " "), f"<p>{figure.description}</p>", picture))
        if not arrays:
            raise VitkitError("verbs.figures-missing", "; ".join(remarks))
        with replacing(folder / "anatomy.npz") as temporary, temporary.open("wb") as file:
            np.savez(file, **arrays)
        head = ["<h1>Anatomy</h1>", *(f"<p>{escape(line)}</p>" for line in remarks)]
        write_page(folder / "index.html", "vitkit explain: anatomy", [*head, panels(*html)])
    page = folder / "index.html"
    drawn = f"{', '.join(arrays)}: {page}"
    facts = {"page": page, "arrays": arrays, "remarks": tuple(remarks), "notes": tuple(notes.lines)}
    json = {"page": page, "figures": list(arrays), "told": remarks}
    return Result("anatomy", [*remarks, drawn], facts, json=json, summary=drawn)


def _read_images(classifier: Classifier, paths: list[str]) -> tuple[Tensor | None, list[str]]:
    """Return up to `_MAX_IMAGES` preprocessed images (B, C, height, width), or None without paths, and remarks."""
    import torch

    from vitkit.data.decode import UnreadableImageError

    if not paths:
        return None, ["no SRC: filters and positions only; the other figures require images"]
    count = min(len(paths), _MAX_IMAGES)
    chosen = [paths[i * len(paths) // count] for i in range(count)]  # evenly spread
    images, remarks = [], []
    for done, path in enumerate(chosen, 1):
        try:
            images.append(classifier.read(path))
        except UnreadableImageError as error:
            remarks.append(f"{public_path(path)}: {error}")
        progress("reading", done, len(chosen))
    if not images:
        raise VitkitError(
            "verbs.images-unreadable", f"none of the {len(chosen)} images can be read; the first: {remarks[0]}"
        )
    which = "" if count == len(paths) else f" of {len(paths)}, evenly spread"
    return torch.stack(images), [*remarks, f"{plural(len(images), 'image', 'images')}{which}"]


class _AnatomyFigure(NamedTuple):
    """A figure of the model: its description, and functions that compute and draw its values."""

    description: str
    compute: Callable[[], Any]
    draw: Callable[[Any], Figure]


def _figures(model: VisionTransformer, images: Tensor | None) -> dict[str, _AnatomyFigure]:
    from vitkit.explanation import model_analysis as anatomy

    figures = {
        "filters": _AnatomyFigure(
            "The principal components of the patch embedding's filters: the patterns that patches are first compared "
            "with.",
            lambda: anatomy.filter_components(model),
            anatomy.filters,
        ),
        "positions": _AnatomyFigure(
            "Each small picture shows how similar the embedding of one position is to those of all others. "
            "The model did not know that patches lie in rows and columns.",
            lambda: anatomy.position_similarity(model),
            anatomy.position_grid,
        ),
    }
    if images is None:
        return figures
    return figures | {
        "attention_distance": _AnatomyFigure(
            "How far each head looks on average: heads with low dots see the neighbourhood, with high dots the whole "
            "picture.",
            lambda: anatomy.attention_distance(model, images),
            lambda values: anatomy.by_head(values, "Attention distance", "pixels of the input"),
        ),
        "token_norms": _AnatomyFigure(
            "Patches with much larger norms than the rest are artefacts: the model uses them to store global "
            "information, so they say nothing about their place in the picture (arXiv 2309.16588).",
            lambda: anatomy.norms_by_layer(model, images),
            lambda values: anatomy.norms(values, model.config.prefix_tokens),
        ),
    }
