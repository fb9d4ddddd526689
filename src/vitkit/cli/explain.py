"""`vitkit explain`: where in a photograph an answer comes from, and what a checkpoint is like inside."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from html import escape
from math import log2
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from vitkit.cli.arguments import ModelSource, find_pictures, load_model
from vitkit.cli.say import say
from vitkit.errors import UnansweredError, VitkitError
from vitkit.system.files import without_place
from vitkit.verbs.inputs import source_folders
from vitkit.verbs.places import check_outside, sole_out_folder

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor

    from vitkit.classifier import Classifier
    from vitkit.explanation.explanation import Explanation

Method = Literal["gradient", "rollout", "raw", "gradient-attention", "occlusion", "heads", "all"]
_IMAGES = "images"  # below --out: a folder for each image
_THUMBNAIL = 320
_MOST_IMAGES = 128  # for attention distances, as in the paper (app. D.7)


def explain(
    model: ModelSource,
    sources: Annotated[
        list[str] | None, typer.Argument(metavar="SRC...", help="Images, folders (walked), or patterns.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write into this folder.")] = None,
    method: Annotated[Method, typer.Option("--method", help="How to look inside.")] = "gradient",
    target: Annotated[
        str,
        typer.Option("--target", metavar="CLASS|top|N", help="The class to explain: by name, by number, or the top."),
    ] = "top",
    layer: Annotated[
        int | None, typer.Option("--layer", help="For raw, heads, gradient-attention: this layer; -1 is the last.")
    ] = None,
    anatomy: Annotated[
        bool, typer.Option("--anatomy", help="Filters, positions and attention distances, as in the paper.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Write into --out though it is not empty.")] = False,
) -> None:
    """Pictures of what an answer rests on: maps upon each photograph, or with --anatomy the model's own figures.

    Example: vitkit explain runs/digits-1 photo.jpg -o explained
    """
    sources = sources or []
    if anatomy and (method, target, layer) != ("gradient", "top", None):
        raise VitkitError("--anatomy is about the model, not about an answer: leave out --method, --target and --layer")
    folder = _check(out, sources, anatomy=anatomy)
    paths = list(dict.fromkeys(find_pictures(sources)[0]))
    for path in paths:
        if folder.resolve() == Path(path).resolve().parent:
            raise VitkitError(f"--out {folder} holds the image {path}: nothing is written beside the photographs")
    with sole_out_folder("--out", folder, (), "or --force to write into it", may_hold=force):
        classifier = load_model(model)
        if anatomy:
            _draw_anatomy(classifier, paths, folder)
        else:
            _explain_images(classifier, paths, sources, folder, method, target, layer)


def _check(out: Path | None, sources: list[str], *, anatomy: bool) -> Path:
    if out is None:
        raise VitkitError("say where to: --out DIR")
    if not sources and not anatomy:
        raise VitkitError("say what to explain: SRC...; or the model itself: --anatomy")
    for folder in (out, out / _IMAGES):
        check_outside("--out", folder, source_folders(sources))
    return out


# --- Images -----------------------------------------------------------------------------------------


def _explain_images(
    classifier: Classifier,
    paths: list[str],
    sources: list[str],
    out: Path,
    method: Method,
    target: str,
    layer: int | None,
) -> None:
    from vitkit.cli.progress import Bar
    from vitkit.data.decode import UnreadableImageError
    from vitkit.text.html import write_page

    root = _common_root(paths, source_folders(sources))
    rows: list[str] = []
    unreadable: list[str] = []
    with Bar() as bar:
        for done, path in enumerate(paths, 1):
            try:
                explanation = classifier.explain(path, method, target, layer)
            except (UnreadableImageError, UnansweredError) as error:
                unreadable.append(f"{without_place(path)}: {error}")
                bar.say(f"{path}: {error}")
                continue
            place = Path(_IMAGES) / os.path.relpath(os.path.abspath(path), root)  # noqa: PTH100  # not through links
            (out / place).mkdir(parents=True, exist_ok=True)
            explanation.save(out / place)
            rows.append(_row(explanation, path, place))
            bar("explaining", done, len(paths))
    count = f"{len(paths)} images ({len(unreadable)} unreadable)"
    if not rows:
        say(f"{count}: nothing to explain")
        raise typer.Exit(1)
    head = [f"<h1>{method}</h1>", f"<p>{count}</p>", *(f"<p>{escape(line)}</p>" for line in unreadable)]
    write_page(out / "index.html", f"vitkit explain: {method}", [*head, f'<div class="row">{"".join(rows)}</div>'])
    say(f"{count}, {method}: {out / 'index.html'}")


def _common_root(paths: Iterable[str], folders: Iterable[str]) -> str:
    """The folder that all lie in, so that images of one name in two folders do not meet."""
    roots = {os.path.abspath(folder) for folder in folders}  # noqa: PTH100
    return os.path.commonpath(roots | {os.path.dirname(os.path.abspath(path)) for path in paths})  # noqa: PTH100, PTH120


def _row(explanation: Explanation, path: str, place: Path) -> str:
    """A thumbnail that leads to the image's page."""
    from vitkit.explanation.draw import thumbnail
    from vitkit.text.html import image

    method = "gradient" if "gradient" in explanation.maps else next(iter(explanation.maps), "heads")
    shown = image(without_place(path), thumbnail(explanation.overlay(method, _THUMBNAIL), _THUMBNAIL), "jpeg")
    name = f"{escape(explanation.target)} {explanation.probability:.3f}<br>{escape(without_place(path))}"
    return f'<figure><a href="{_link(place)}/index.html">{shown}</a><figcaption>{name}</figcaption></figure>'


def _link(place: Path) -> str:
    from urllib.parse import quote_from_bytes

    return quote_from_bytes(os.fsencode(place.as_posix()))


# --- Anatomy ----------------------------------------------------------------------------------------


class _Part(NamedTuple):
    """A figure of the model: what it tells, its numbers, and how they are drawn."""

    tells: str
    compute: Callable[[], Any]
    draw: Callable[[Any], Figure]


def _draw_anatomy(classifier: Classifier, paths: list[str], out: Path) -> None:
    from vitkit.explanation.draw import to_png
    from vitkit.text.html import image, write_page

    images, said = _read_images(classifier, paths)
    pieces: list[str] = []
    arrays: dict[str, Any] = {}
    for name, part in _parts(classifier, images).items():
        try:
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
    write_page(out / "index.html", "vitkit explain: anatomy", [*head, *pieces])
    say("\n".join([*said, f"{', '.join(arrays)}: {out / 'index.html'}"]))


def _read_images(classifier: Classifier, paths: list[str]) -> tuple[Tensor | None, list[str]]:
    """What the model is shown, (B, C, height, width), and what there is to say of it."""
    import torch

    from vitkit.cli.progress import Bar
    from vitkit.data.decode import UnreadableImageError

    if not paths:
        return None, ["no SRC: filters and positions only; what depends on images needs some"]
    chosen = (
        [paths[i * len(paths) // _MOST_IMAGES] for i in range(_MOST_IMAGES)] if len(paths) > _MOST_IMAGES else paths
    )
    images, said = [], []
    with Bar() as bar:
        for done, path in enumerate(chosen, 1):
            try:
                images.append(classifier.read(path))
            except UnreadableImageError as error:
                said.append(f"{without_place(path)}: {error}")
            bar("reading", done, len(chosen))
    if not images:
        raise VitkitError(f"none of the {len(chosen)} images can be read; the first: {said[0]}")
    which = "" if chosen is paths else f" of {len(paths)}, evenly spread"
    return torch.stack(images), [*said, f"{len(images)} images{which}"]


def _parts(classifier: Classifier, images: Tensor | None) -> dict[str, _Part]:
    from vitkit.explanation import draw
    from vitkit.explanation import model_analysis as anatomy

    model = classifier.model
    parts = {
        "filters": _Part(
            "The directions in which the patch embedding's filters differ most: what a patch is first looked at for.",
            lambda: anatomy.filter_components(model),
            draw.filters,
        ),
        "positions": _Part(
            "Each small picture is one position: how alike its embedding is to every other's. "
            "Nobody told the model that patches lie in rows and columns.",
            lambda: anatomy.position_similarity(model),
            draw.position_grid,
        ),
    }
    return parts if images is None else parts | _parts_of_images(classifier, images)


def _parts_of_images(classifier: Classifier, images: Tensor) -> dict[str, _Part]:
    from vitkit.explanation import draw
    from vitkit.explanation import model_analysis as anatomy

    model = classifier.model
    return {
        "attention_distance": _Part(
            "How far each head looks, on average: low dots see the neighbourhood, high ones the whole picture.",
            lambda: anatomy.attention_distance(model, images),
            lambda values: draw.by_head(values, "Attention distance", "pixels of the input"),
        ),
        "attention_entropy": _Part(
            f"Over how many tokens each head spreads: 0 bits is one alone, {log2(model.config.tokens):.1f} all alike.",
            lambda: anatomy.attention_entropy(model, images),
            lambda values: draw.by_head(values, "Attention entropy", "bits"),
        ),
        "token_norms": _Part(
            "Patches far longer than the rest are artefacts: notes of the model's own that say nothing of the picture.",
            lambda: anatomy.norms_by_layer(model, images),
            lambda values: draw.norms(values, model.config.prefix_tokens),
        ),
        "layer_similarity": _Part(
            "Linear CKA: 1 where two layers represent these images alike, 0 where they have nothing in common.",
            lambda: anatomy.layer_similarity(model, images),
            draw.layer_grid,
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
