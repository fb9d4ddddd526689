"""`vitkit.explain`: where in a photograph an answer comes from, and what a checkpoint is like inside.

`vitkit.explain` of the model itself: filters, positions and attention distances, as in the paper's figures.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from math import log2
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeAlias

from vitkit.errors import UnansweredError, VitkitError
from vitkit.explanation.methods import by_layer, method_names
from vitkit.system.environment import DeviceName
from vitkit.system.files import without_place
from vitkit.system.progress import Progress, Say, ignore, progress, silent
from vitkit.text.arguments import check_arguments
from vitkit.text.cells import plural
from vitkit.verbs.inputs import (
    PREPROCESS,
    check_choice,
    check_outside,
    find_pictures,
    named,
    open_model,
    path_of,
    sole_out_folder,
    source_folders,
)
from vitkit.verbs.result import Notes, Result

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


def draw_anatomy(classifier: Classifier, paths: list[str], out: Path) -> Anatomy:
    """Draw what the model allows into the folder `out`; without images, what needs none.

    Raises:
        VitkitError: there is nothing that can be drawn, or none of the images can be read.
    """
    from vitkit.explanation.draw import to_png
    from vitkit.model.build import vit_of
    from vitkit.model.layers import evaluating
    from vitkit.text.html import image, write_page

    vit_of(classifier.model, "--anatomy")
    images, said = _read_images(classifier, paths)
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


def _read_images(classifier: Classifier, paths: list[str]) -> tuple[Tensor | None, list[str]]:
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
    from vitkit.explanation import model_analysis as model_figures
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
    from vitkit.explanation import model_analysis as model_figures
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


if TYPE_CHECKING:
    from vitkit.classifier import Classifier
    from vitkit.explanation.explanation import Explanation
    from vitkit.weights.preprocessing import PreprocessLike

    Method: TypeAlias = str  # the choices are known when the table has been read
else:
    Method = Literal[method_names()]
_IMAGES = "images"  # below `out`: a folder for each image
_THUMBNAIL = 320


@dataclass(frozen=True, repr=False)
class Explanations(Result):
    """Maps upon photographs.

    Attributes:
        method: how the model was looked into.
        explained: for each image the folder with its page, overlays and `maps.npz`.
        unreadable: why there is none, for each of the others.
        page: the page with all of them; None where there are none.
        notes: what had to be assumed of the model, and what could not be looked into.
    """

    method: Method
    explained: dict[str, Path]
    unreadable: dict[str, str] = field(default_factory=dict)
    page: Path | None = None
    notes: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether no image could be explained."""
        return not self.explained

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {
            "method": self.method,
            "explained": {path: str(folder) for path, folder in self.explained.items()},
            "unreadable": self.unreadable,
            "page": None if self.page is None else str(self.page),
        }

    def lines(self) -> list[str]:
        """Why images could not be read, and what became of the others."""
        return [*(f"{path}: {reason}" for path, reason in self.unreadable.items()), self._outcome]

    @property
    def count(self) -> str:
        """How many images there were, in words."""
        images = plural(len(self.explained) + len(self.unreadable), "image", "images")
        return f"{images} ({len(self.unreadable)} unreadable)"

    @property
    def _outcome(self) -> str:
        return f"{self.count}: nothing to explain" if self.page is None else f"{self.count}, {self.method}: {self.page}"

    def __repr__(self) -> str:
        return f"<Explanations: {self._outcome}>"


@check_arguments
def explain(
    model: str | Path | Classifier,
    sources: str | Path | Sequence[str | Path] = (),
    out: Path | str | None = None,
    *,
    method: Method = "gradient",
    target: str | int = "top",
    layer: Annotated[int | None, f"For {', '.join(by_layer())}: this layer; -1 is the last."] = None,
    anatomy: bool = False,
    preprocess: Annotated[str | PreprocessLike | None, PREPROCESS] = None,
    device: DeviceName = "auto",
    force: bool = False,
    note: Say = ignore,
    progress: Progress = silent,
) -> Explanations | Anatomy:
    """Pictures of what an answer rests on: maps upon each photograph, or with `anatomy` the model's own figures.

    `vitkit.explain("runs/digits-1", "photo.jpg", "explained")` writes the page explained/index.html. The maps of one
    picture, without a file, are `vitkit.load("runs/digits-1").explain("photo.jpg").maps`.

    On the command line: `vitkit explain runs/digits-1 photo.jpg -o explained`.

    Args:
        model: run or model folder, checkpoint of any published layout, or published name. A classifier in memory will
            do, too.
        sources: images, folders (walked), or patterns.
        out: write into this folder. There is no other way to have the pictures.
        method: how to look inside.
        target: the class to explain: by name, by number, or `top`, the most probable.
        layer: for the methods that look at one: this layer; -1 is the last.
        anatomy: filters, positions and attention distances, as in the paper.
        preprocess: how images are read, where the model does not say it: settings such as
            `resize=256,crop=224,interpolation=bilinear,mean=0.5,std=0.5`, whose weights they are (google, augreg, deit,
            torchvision or dinov2), or a JSON file that says it. As of `vitkit.load`.
        device: `cpu`, `cuda` or `mps`, where it is computed; `auto`: a CUDA GPU if there is one, else the CPU.
        force: write into `out` though it is not empty.
        note: told what had to be assumed of the model, and what could not be looked into, a line each.
        progress: of loading and explaining.

    Raises:
        VitkitError: the model cannot be loaded or looked into, there is no such class or layer, or `out` cannot be
            written into.
    """
    check_choice("--method", method, Method)
    check_choice("--device", device, DeviceName)
    if anatomy and (method, target, layer) != ("gradient", "top", None):
        raise VitkitError("--anatomy is about the model, not about an answer: leave out --method, --target and --layer")
    names = named(sources)
    folder = _check(path_of(out), names, anatomy=anatomy)
    notes = Notes(note)
    paths = list(dict.fromkeys(find_pictures(names, notes)[0]))
    for path in paths:
        if folder.resolve() == Path(path).resolve().parent:
            raise VitkitError(f"--out {folder} holds the image {path}: nothing is written beside the photographs")
    found: Explanations | Anatomy
    with sole_out_folder("--out", folder, (), "or --force to write into it", may_hold=force):
        classifier = open_model(model, notes, device, preprocess)
        if paths:
            classifier.preprocess.check_known()
        if anatomy:
            found = draw_anatomy(classifier, paths, folder)
        else:
            root = _common_root(paths, source_folders(names))
            found = _explain_images(classifier, paths, root, folder, (method, target, layer))
    return replace(found, notes=tuple(notes.lines))


def _check(out: Path | None, sources: list[str], *, anatomy: bool) -> Path:
    if out is None:
        raise VitkitError("say where to: --out DIR")
    if not sources and not anatomy:
        raise VitkitError("say what to explain: SRC...; or the model itself: --anatomy")
    for folder in (out, out / _IMAGES):
        check_outside("--out", folder, source_folders(sources))
    return out


def _explain_images(
    classifier: Classifier, paths: list[str], root: str, out: Path, how: tuple[Method, str | int, int | None]
) -> Explanations:
    """Explain each image into a folder of its own, named as it lies below `root`."""
    from vitkit.data.decode import UnreadableImageError
    from vitkit.text.html import write_page

    method = how[0]
    rows: list[str] = []
    found = Explanations(method, {})
    for done, path in enumerate(paths, 1):
        try:
            explanation = classifier.explain(path, *how)
        except (UnreadableImageError, UnansweredError) as error:
            found.unreadable[path] = str(error)
            continue
        place = Path(_IMAGES) / os.path.relpath(os.path.abspath(path), root)  # noqa: PTH100  # not through links
        (out / place).mkdir(parents=True, exist_ok=True)
        explanation.save(out / place)
        found.explained[path] = out / place
        rows.append(_row(explanation, path, place))
        progress("explaining", done, len(paths))
    if found.is_empty:
        return found
    unreadable = [f"<p>{escape(f'{without_place(path)}: {why}')}</p>" for path, why in found.unreadable.items()]
    head = [f"<h1>{method}</h1>", f"<p>{found.count}</p>", *unreadable]
    page = out / "index.html"
    write_page(page, f"vitkit explain: {method}", [*head, f'<div class="row">{"".join(rows)}</div>'])
    return replace(found, page=page)


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
