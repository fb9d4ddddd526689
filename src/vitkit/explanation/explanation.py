"""Explain the prediction for an image by maps of the regions that support it.

The explained pixels are exactly the pixels that a prediction uses. `choose_methods` returns the methods that apply to a
model.

Shapes: h x w patch grid.
"""

from __future__ import annotations

import difflib
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from vitkit.data.decode import UnreadableImageError, picture_of, warn_if_doubtful
from vitkit.data.in_memory import InMemory, PictureInMemory, is_in_memory, open_in_memory
from vitkit.data.preprocess import Preprocess
from vitkit.data.storage import Place, Stored
from vitkit.errors import NOT_FINITE, UnansweredError, VitkitError
from vitkit.explanation import draw
from vitkit.explanation.attention import (
    attention_layers,
    attention_maps,
    average_rows_of_head,
    find_layer,
    head_maps,
    to_grid,
)
from vitkit.explanation.class_maps import check_feature_map
from vitkit.explanation.draw import Box, FloatArray
from vitkit.explanation.methods import HEADS, METHODS, by_layer, method_names, methods_for
from vitkit.model.build import Model, vit_of
from vitkit.model.layers import evaluating
from vitkit.model.network import Network
from vitkit.model.variants import MAPS, unsupported_reason
from vitkit.system.files import public_path, write_bytes
from vitkit.text.arguments import path_text
from vitkit.text.pages import (
    KINDS,
    as_file,
    checked_suffix,
    component,
    folded,
    image,
    new_figure,
    panel,
    panels,
    plot_picture,
    shorten,
    write_page,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, FigureBase


def can_explain(model: Model) -> bool:
    """Return whether the method `gradient` can explain the model.

    A Vision Transformer must have self-attention, and no attention pooling before its head. Any other network must have
    a feature map before its head.
    """
    if isinstance(model, Network):
        return model.anatomy.map is not None
    return bool(attention_layers(model.config)) and model.config.pool != "map"


def choose_methods(method: str, layer: int | None, model: Model) -> list[str]:
    """Return the requested method, or for `all` every method that applies to the model. The layer is only checked.

    Raises:
        VitkitError: the method or layer does not exist, or does not apply to this model.
    """
    if method not in method_names():
        message = f"there is no method {method!r}: expected {', '.join(METHODS)}, or all"
        raise VitkitError("explanation.method-missing", message)
    if isinstance(model, Network):
        known = methods_for(is_network=True)
        if method != "all" and method not in known:
            text = f"{method} requires a Vision Transformer; for {model.config.full_name} use {' or '.join(known)}"
            raise VitkitError("explanation.model-kind", text)
        if layer is not None:
            text = f"--layer requires a Vision Transformer, and this is {model.config.full_name}: leave it out"
            raise VitkitError("explanation.model-kind", text)
        if method == "all":
            return [name for name in known if name != "gradient" or can_explain(model)]
        if method == "gradient":
            check_feature_map(model)
        return [method]

    methods = [method]
    if method == "all":
        has_maps = model.config.pool != "map" and not unsupported_reason(model.config, MAPS)
        methods = list(METHODS) if has_maps else ["occlusion"]  # the other methods would refuse the model
    if layer is not None:
        if not set(methods) & set(by_layer()):
            text = f"{method} uses all layers; --layer applies to {', '.join(by_layer())}"
            raise VitkitError("explanation.layer-unused", text)
        find_layer(model.config, layer)
    return methods


def read_photograph(
    preprocess: Preprocess, source: str | Place | bytes | Image.Image | npt.NDArray[Any] | Tensor
) -> tuple[str | None, Image.Image, Tensor, Box]:
    """Return the path, the photograph, the model's input (C, height, width), and its box.

    The path is None for a picture in memory. The box is the region of the photograph that the input covers.
    """
    if isinstance(source, (bytes, bytearray)):
        return None, *_read("the picture", preprocess, bytes(source))
    if is_in_memory(source):
        with open_in_memory(PictureInMemory("the picture", source)) as picture:  # type: ignore[arg-type]
            warn_if_doubtful("the picture", picture)
        image = picture.image
        return None, image, torch.from_numpy(preprocess(image)), preprocess.box(*image.size)
    if isinstance(source, Stored):
        return source.name, *_read(source, preprocess)
    path = path_text(source, "the image")
    return path, *_read(path, preprocess)


def _read(path: str | Place, preprocess: Preprocess, content: bytes | None = None) -> tuple[Image.Image, Tensor, Box]:
    with picture_of(path, preprocess.short_side, content) as picture:
        warn_if_doubtful(path, picture)
    pixels = torch.from_numpy(preprocess(picture.image))
    box = preprocess.box(*picture.image.size)
    if picture.image.size == (picture.width, picture.height):
        return picture.image, pixels, box
    # `picture` was decoded at a smaller scale, which is faster, but the overlay needs the full resolution.
    with picture_of(path, content=content) as full_size:
        photograph = full_size.image
    x, y = photograph.width / picture.image.width, photograph.height / picture.image.height
    return photograph, pixels, (box[0] * x, box[1] * y, box[2] * x, box[3] * y)


LONG_SIDE = 2048  # maximum size of an overlay in pixels
PAGE = "index.html"  # in the folder of an explanation
ON_PAGE = 640
_THUMBNAIL = 320


class Explainable(Protocol):
    """The interface that a classifier must have to be explained."""

    model: Model
    classes: tuple[str, ...]
    preprocess: Preprocess

    @property
    def task(self) -> str: ...
    def probabilities(self, images: Tensor) -> Tensor: ...


@dataclass(frozen=True, repr=False)
class Explanation:
    """The prediction for an image, and the explanation of each method.

    Attributes:
        path: the path of the image as the caller gave it; None for a picture in memory.
        photograph: the upright RGB picture in its original resolution.
        target: the class that is explained.
        probability: the probability of that class.
        ranking: every class with its probability, the most probable first.
        maps: the map (h, w) of each method on the grid of patches, by name. The units differ between methods.
        box: the region that the model received: left, top, right and bottom in pixels of the photograph. The region
            reaches beyond the photograph if the input was padded.
        heads: the attention of each head, (layers, heads, h, w); None if it was not requested.
        layers: the numbers of the layers in `heads`.
    """

    path: str | None
    photograph: Image.Image
    target: str
    probability: float
    ranking: tuple[tuple[str, float], ...]
    maps: Mapping[str, FloatArray]
    box: Box
    heads: FloatArray | None = None
    layers: tuple[int, ...] = ()
    is_network: bool = False  # whether the model is another library's network

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods that were requested."""
        return tuple(self.maps) if self.heads is None else (*self.maps, HEADS)

    @property
    def title(self) -> str:
        """The file name of the image, the explained class and its probability, in one line."""
        name = "" if self.path is None else f"{Path(self.path).name}: "
        return f"{name}{self.target} {self.probability:.3f}"

    def overlay(self, method: str, long_side: int = LONG_SIDE) -> Image.Image:
        """Draw a method's map on the photograph; for `heads`, the mean over the heads of the last layer.

        The picture has at most `long_side` pixels per side.

        Raises:
            VitkitError: there is no map of this method.
        """
        if method == "heads" and self.heads is not None:
            values = self.heads[-1].mean(axis=0)
        elif method in self.maps:
            values = self.maps[method]
        else:
            text = f"there is no map of {method!r}: the maps are {', '.join(self.maps) or 'none'}"
            raise VitkitError("explanation.map-missing", text)
        photograph, box = draw.fit(self.photograph, self.box, long_side)
        return draw.overlay(photograph, values, box)

    def __repr__(self) -> str:
        """Return one line: the image, the class and the methods."""
        return f"<Explanation: {self.title}; {', '.join(self.maps) or 'heads'}>"

    def _repr_html_(self) -> str:
        """Return the photograph and each method's overlay for a notebook."""
        overlays = {method: self.overlay(method, 320) for method in self.methods}
        size = next(iter(overlays.values())).size
        html = f"<div><b>{escape(self.title)}</b></div>"
        for name, picture in {"photograph": self.photograph.resize(size), **overlays}.items():
            html += (
                f'<figure style="display: inline-block; margin: 0.5em"><figcaption>{escape(name)}</figcaption>'
                f"{image(name, draw.thumbnail(picture, 320), 'jpeg')}</figure>"
            )
        return html

    def pictures(self) -> dict[str, Callable[[], Figure]]:
        """Return functions that draw figures, by name: first `all` if there are several maps, then each method."""
        figures: dict[str, Callable[[], Figure]] = {}
        if len(self.maps) > 1:
            figures["all"] = partial(draw.side_by_side, self.photograph, self.maps, self.box, self.title)
        return figures | {method: partial(self._draw, method) for method in self.methods}

    def plot(self, picture: str | None = None, figure: FigureBase | None = None) -> list[Axes]:
        """Draw an overlay with matplotlib, and return its axes.

        Args:
            picture: a method, or `all` for all maps side by side. By default, `all` if there are several maps,
                otherwise the first method.
            figure: the figure or subfigure to draw on. By default, a new pyplot figure, which a notebook displays.

        Raises:
            VitkitError: there is no map of this method.
        """
        return plot_picture(self.pictures(), picture, type(self).__name__, figure)

    def save(self, target: str | Path) -> Path:
        """Write the explanation to a folder, or to one file in the format of its suffix.

        `.png`, `.svg` and `.pdf` files contain the overlays side by side, and `.npz` files contain the arrays. An
        `.html` file is a page with all results. A folder gets the overlays as PNG files, the arrays, and the page as
        `index.html`.

        Args:
            target: the folder or file.

        Raises:
            VitkitError: the suffix is not supported.
            OSError: the file or folder cannot be written.
        """
        target = Path(target)
        if target.is_dir() or not target.suffix:
            target.mkdir(parents=True, exist_ok=True)
            for method in self.maps:
                write_bytes(target / f"{method}.png", draw.picture_to_png(self.overlay(method)))
            if len(self.maps) > 1:
                write_bytes(target / "methods.png", self._picture())
            if self.heads is not None:
                write_bytes(target / "heads.png", draw.to_png(self._draw(HEADS)))
                (target / HEADS).mkdir(exist_ok=True)
                for layer, picture in self._head_sheets().items():
                    write_bytes(target / HEADS / f"layer-{layer}.jpg", draw.to_jpeg(picture))
            write_bytes(target / "maps.npz", self._arrays())
            self._write_page(target / PAGE)
            return target
        match checked_suffix(target, (*KINDS, ".npz", ".html"), or_folder=True):
            case ".png":
                write_bytes(target, self._picture())
            case ".svg" | ".pdf" as kind:
                write_bytes(target, as_file(next(iter(self.pictures().values())), kind))
            case ".npz":
                write_bytes(target, self._arrays())
            case _:
                self._write_page(target)
        return target

    def _draw(self, method: str) -> Figure:
        if method == HEADS:
            assert self.heads is not None
            return draw.head_sheet(self.heads, self.layers, "Each head's attention")
        picture = self.overlay(method)
        figure = new_figure(4.0, 4.0 * min(picture.height / picture.width, 2) + 0.3)
        axis = figure.subplots()
        axis.imshow(picture)
        axis.set_axis_off()
        axis.set_title(shorten(f"{method}: {self.title}", 60), fontsize=9)
        return figure

    def _picture(self) -> bytes:  # a PNG file of the only map, or of all maps side by side
        if len(self.maps) == 1:
            return draw.picture_to_png(self.overlay(next(iter(self.maps))))
        return draw.to_png(next(iter(self.pictures().values()))())

    def _head_sheets(self) -> dict[int, Image.Image]:
        assert self.heads is not None
        return {
            layer: draw.heads_sheet(self.photograph, maps, self.box)
            for layer, maps in zip(self.layers, self.heads, strict=True)
        }

    def _arrays(self) -> bytes:
        arrays: dict[str, Any] = {
            **self.maps,
            "box": np.array(self.box),
            "target": np.array(self.target.encode(errors="replace").decode()),
            "probability": np.array(self.probability),
        }
        if self.heads is not None:
            arrays |= {"heads": self.heads, "layers": np.array(self.layers)}
        data = io.BytesIO()
        np.savez(data, **arrays)
        return data.getvalue()

    def _write_page(self, path: Path) -> None:
        best, _ = self.ranking[0]
        sentence = f"The most probable class is {best}"
        if self.target != best:
            sentence += f", and this page explains {self.target}"
        caption = f"probability of {self.target}"
        if self.path:
            caption += f", in {public_path(self.path)}"
        bars = "".join(
            f'<li><span>{escape(label)}</span><span class="number">{p:.4f}</span>{component("bar", p, label)}</li>'
            for label, p in self.ranking[:5]
        )
        body = [
            f"<h1>Why {escape(self.target)}?</h1>",
            component("verdict", "note", sentence, f"{100 * self.probability:.1f} %", caption),
            panels(
                panel("Photograph", image("photograph", self._thumbnail(ON_PAGE), "jpeg")),
                panel("The most probable classes", f'<ul class="bars">{bars}</ul>'),
            ),
        ]
        if len(self.methods) > 1:
            body.append(panel("Methods", self.thumbnails()))

        map_panels = []
        for method, values in self.maps.items():
            text = escape(methods_for(is_network=self.is_network)[method].description)
            flat = draw.describe_flat(values)
            if flat:
                text += f" <b>Here it is {flat}.</b>"
            overlay = image(method, draw.thumbnail(self.overlay(method, ON_PAGE), ON_PAGE), "jpeg")
            heatmap = image(f"{method}, by patch", draw.to_png(draw.heatmap(values, method, "value")), "png")
            map_panels.append(panel(method, overlay, f"<p>{text}</p>", folded("By patch", heatmap), name=method))
        body.append(panels(*map_panels))

        if self.heads is not None:
            parts = [f"<p>{escape(METHODS[HEADS].description)}</p>"]
            for layer, picture in self._head_sheets().items():
                sheet = image(f"heads of layer {layer}", draw.to_jpeg(picture), "jpeg")
                parts.append(folded(f"The heads of layer {layer}", sheet, is_open=len(self.layers) == 1))
            parts.append(folded("All heads by patch", image(HEADS, draw.to_png(self._draw(HEADS)), "png")))
            body.append(panel(HEADS, *parts, name=HEADS))
        write_page(path, self.title, body)

    def _thumbnail(self, long_side: int) -> bytes:  # the photograph without a map, as a JPEG file
        photograph, _ = draw.fit(self.photograph, self.box, long_side)
        return draw.thumbnail(photograph, long_side)

    def thumbnails(self, page: str = "", *, has_texts: bool = True) -> str:
        """Return the photograph and a thumbnail of each method as HTML, linked to their places on `page` (or here).

        With `has_texts`, a sentence below each thumbnail describes the method.
        """
        link = f'<a href="{page}">' if page else "<a>"
        photograph = image("photograph", self._thumbnail(_THUMBNAIL), "jpeg")
        figures = f"<figure>{link}{photograph}</a><figcaption><b>photograph</b></figcaption></figure>"
        descriptions = methods_for(is_network=self.is_network)
        for method in self.methods:
            overlay = image(method, draw.thumbnail(self.overlay(method, _THUMBNAIL), _THUMBNAIL), "jpeg")
            caption = f"<b>{method}</b>"
            flat = draw.describe_flat(self.maps[method]) if method in self.maps else None
            if flat:
                caption += f": {flat}"
            if has_texts:
                caption += f"<br>{escape(descriptions[method].description)}"
            figures += f'<figure><a href="{page}#{method}">{overlay}</a><figcaption>{caption}</figcaption></figure>'
        return f'<div class="pictures">{figures}</div>'


def explain(
    classifier: Explainable,
    source: str | Place | bytes | InMemory,
    method: str = "gradient",
    target: str | int = "top",
    layer: int | None = None,
) -> Explanation:
    """Show which regions of an image support a class; see `Classifier.explain`."""
    return explain_classes(classifier, source, (target,), method, layer)[0]


def explain_classes(
    classifier: Explainable,
    source: str | Place | bytes | InMemory,
    targets: Sequence[str | int],
    method: str = "gradient",
    layer: int | None = None,
) -> list[Explanation]:
    """Explain several classes of one image. The image is read and classified once; see `Classifier.explain`."""
    model = classifier.model
    if not classifier.classes:
        message = "the model has no head, so there is no class to explain: train a head, or use --anatomy"
        raise VitkitError("explanation.head-missing", message)
    known = methods_for(is_network=isinstance(model, Network))
    methods = choose_methods(method, layer, model)
    if classifier.task == "multi":
        if method != "all" and known[method].compares_classes:
            text = f"{method} compares a class with its rivals, and a multi-label model has none: use gradient"
            raise VitkitError("explanation.method-unsuited", text)
        methods = [name for name in methods if not known[name].compares_classes]
    path, photograph, pixels, box = read_photograph(classifier.preprocess, source)

    with evaluating(model):
        images = pixels[None].to(next(model.parameters()).device)  # (1, C, height, width)
        probabilities = classifier.probabilities(images)[0].cpu().numpy()
        if not np.isfinite(probabilities).all():
            raise UnansweredError("explanation.output-not-finite", NOT_FINITE)
        numbers = [find_class(classifier.classes, target, probabilities) for target in targets]  # T classes
        maps: dict[str, FloatArray] = {}  # (T, h, w) each
        for name in methods:
            if name == HEADS:
                continue
            options: dict[str, Any] = {}
            if known[name].is_layer_specific and layer is not None:
                options["layer"] = layer
            if known[name].is_class_specific:
                repeated = images.expand(len(numbers), -1, -1, -1)
                maps[name] = known[name](model, repeated, target=torch.tensor(numbers), **options).cpu().numpy()
            else:
                maps[name] = np.repeat(known[name](model, images, **options).cpu().numpy(), len(numbers), axis=0)
        heads: FloatArray | None = None
        layers: tuple[int, ...] = ()
        if HEADS in methods:
            vit = vit_of(model, HEADS)
            if layer is not None:
                layers = (find_layer(vit.config, layer),)
                heads = head_maps(vit, images, layer).cpu().numpy()
            else:
                layers = tuple(attention_layers(vit.config))
                rows = [average_rows_of_head(attention, vit.config) for attention in attention_maps(vit, images)]
                heads = to_grid(torch.cat(rows), vit.config).cpu().numpy()

    order = np.argsort(-probabilities, kind="stable")
    ranking = tuple((classifier.classes[i], float(probabilities[i])) for i in order)
    return [
        Explanation(
            path=path,
            photograph=photograph,
            target=classifier.classes[number],
            probability=float(probabilities[number]),
            ranking=ranking,
            maps={name: values[i] for name, values in maps.items()},
            box=box,
            heads=heads,
            layers=layers,
            is_network=isinstance(model, Network),
        )
        for i, number in enumerate(numbers)
    ]


def find_class(classes: Sequence[str], target: str | int, probabilities: npt.NDArray[np.float32]) -> int:
    """Return the index of a class.

    Args:
        classes: the names of the classes.
        target: `top` for the most probable class, the name of a class, or an index if no class has this name.
        probabilities: the probabilities of the classes, (K,).

    Raises:
        VitkitError: there is no such class; the message suggests similar names.
    """
    if target == "top":
        return int(np.argmax(probabilities))
    if target in classes:
        return list(classes).index(str(target))
    if str(target).isdecimal() and int(target) < len(classes):
        return int(target)
    close = difflib.get_close_matches(str(target), classes, n=3, cutoff=0.5)
    hint = f"; did you mean {' or '.join(close)}?" if close else ""
    raise VitkitError(
        "explanation.class-missing",
        f"there is no class {str(target)!r}: expected top, one of the {len(classes)} names, "
        f"or a number from 0 to {len(classes) - 1}{hint}",
    )


def explain_mistake(
    classifier: Explainable, path: str | Place, true: str, predicted: str
) -> list[tuple[str, bytes]] | str:
    """Draw a misclassified photograph, and by gradients the evidence for the predicted class and for the true class.

    Returns:
        Captions with the contents of JPEG files, or the reason why the photograph cannot be read or explained.
    """
    try:
        for_predicted, for_true = explain_classes(classifier, path, (predicted, true))
    except (UnreadableImageError, UnansweredError) as error:
        return str(error)
    pictures = {
        public_path(str(path)): draw.fit(for_predicted.photograph, for_predicted.box, ON_PAGE)[0],
        f"evidence for {predicted} ({for_predicted.probability:.3f})": for_predicted.overlay("gradient", ON_PAGE),
        f"evidence for {true} ({for_true.probability:.3f})": for_true.overlay("gradient", ON_PAGE),
    }
    return [(caption, draw.thumbnail(picture, 480)) for caption, picture in pictures.items()]
