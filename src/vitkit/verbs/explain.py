"""`vitkit.explain`: show which parts of photographs predictions are based on."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from vitkit.errors import UnansweredError, VitkitError
from vitkit.explanation.methods import by_layer, method_names
from vitkit.system.files import common_folder, public_path, write_bytes
from vitkit.system.progress import Progress, progress, silent
from vitkit.text.arguments import Only, check_arguments
from vitkit.text.cells import plural
from vitkit.verbs.inputs import (
    PREPROCESS,
    check_not_among_images,
    check_outside,
    exclusive_out_folder,
    find_pictures,
    open_model,
    source_folders,
    source_names,
)
from vitkit.verbs.options import Compute
from vitkit.verbs.result import Notes, Result, as_json

if TYPE_CHECKING:
    from PIL import Image

    from vitkit.classifier import Classifier
    from vitkit.explanation.explanation import Explanation
    from vitkit.weights.preprocessing import PreprocessLike

    Method: TypeAlias = str  # the choices are only known at run time
else:
    Method = Literal[method_names()]

Style = Literal["overlay", "paper"]
_IMAGES = "images"  # the folder below `out` that has a folder for each image
_THUMBNAIL = 320  # pixels
_MAX_IN_SHEET, _SIDE_IN_SHEET = 30, 400  # images, and pixels of the longer side


@dataclass(frozen=True, repr=False)
class Explanations(Result):
    """Maps that explain the predictions for photographs.

        import vitkit

        explanations = vitkit.explain("runs/digits-1", "photo.jpg", "explained")
        print(explanations.page, explanations.unreadable)

    Attributes:
        method: the method of the explanations.
        explained: the folder of each explained image, by path. Each folder contains a page, overlays and `maps.npz`.
        unreadable: the reason why each remaining image has no explanation, by path.
        page: the page with all explanations, or None if there are none.
        notes: assumptions about the model, and folders that were left out.
        sheet: the sheet of the style `paper` as a PNG file, next to SVG and PDF files; None for other styles.
    """

    method: Method
    explained: dict[str, Path]
    unreadable: dict[str, str] = field(default_factory=dict)
    page: Path | None = None
    notes: tuple[str, ...] = ()
    sheet: Path | None = None

    @property
    def is_empty(self) -> bool:
        """True if no image could be explained."""
        return not self.explained

    def to_dict(self) -> dict[str, Any]:
        """Return the paths and the method in plain JSON types."""
        names = ("method", "explained", "unreadable", "page", "sheet")
        return {name: as_json(getattr(self, name)) for name in names}

    def lines(self) -> list[str]:
        """Return a line with the reason for each image without an explanation, and a line with counts and the page."""
        lines = [f"{path}: {reason}" for path, reason in self.unreadable.items()]
        if self.page is None:
            return [*lines, f"{self.count}: nothing to explain"]
        return [*lines, f"{self.count}, {self.method}: {self.page}"]

    @property
    def count(self) -> str:
        """The number of images and the number of unreadable ones, as text."""
        images = plural(len(self.explained) + len(self.unreadable), "image", "images")
        return f"{images} ({len(self.unreadable)} unreadable)"

    def __repr__(self) -> str:
        return f"<Explanations: {self.lines()[-1]}>"


@check_arguments
def explain(
    model: str | Path | Classifier,
    sources: str | Path | Sequence[str | Path] = (),
    out: Path | str | None = None,
    *,
    method: Method | None = None,
    style: Style = "overlay",
    target: str | int = "top",
    layer: Annotated[int | None, f"For {', '.join(by_layer())}: this layer; -1 is the last."] = None,
    preprocess: Annotated[str | PreprocessLike | None, PREPROCESS] = None,
    compute: Annotated[Compute, Only(("device",))] = Compute(),
    force: bool = False,
    progress: Progress = silent,
) -> Explanations:
    """Show which parts of a photograph a prediction is based on.

        import vitkit

        print(vitkit.explain("runs/digits-1", "photo.jpg", "explained").page)  # explained/index.html
        maps = vitkit.load("runs/digits-1").explain("photo.jpg", "rollout").maps  # without a file
        print(maps["rollout"].shape)  # (rows, columns), a number for each patch

    On the command line: `vitkit explain runs/digits-1 photo.jpg -o explained`.

    Args:
        model: a run or model folder, a checkpoint of any published layout, or a published name. A classifier in memory
            is accepted, too.
        sources: images, folders (including their sub-folders), or glob patterns.
        out: the folder to write to. It is required.
        method: the method of explanation; by default `gradient`, or `rollout` with the style `paper`.
        style: `paper` adds a sheet as in the paper's Figure 6, with up to 30 images, each next to the image multiplied
            by its map.
        target: the class to explain: its name, its number, or `top` for the most probable one.
        layer: the layer to explain, for methods that explain one layer; -1 is the last.
        preprocess: the preprocessing of images, in a form that `vitkit.load` accepts; by default that of the model, or
            an assumed one if the model states none.
        compute: the device to compute on.
        force: write to `out` even if it is not empty.
        progress: called with the current task, the number of finished items and the total number of items.

    Raises:
        VitkitError: the model cannot be loaded or explained, there is no such class or layer, or `out` cannot be
            written to.
    """
    if style == "paper" and method in ("heads", "all"):
        raise VitkitError(
            "verbs.option-conflict", f"--style paper shows one map of each image: use a single method, not {method}"
        )
    method = method or ("rollout" if style == "paper" else "gradient")
    names = source_names(sources)
    if out is None:
        raise VitkitError("verbs.out-missing", "no folder to write to: add --out DIR")
    if not names:
        raise VitkitError(
            "verbs.images-missing", "no images to explain: add SRC..., or --anatomy to explain the model itself"
        )
    folder, notes = Path(out), Notes()
    folders = (folder, folder / _IMAGES)
    with open_model_and_images(model, names, folders, notes, preprocess, compute, force=force) as (classifier, paths):
        searched = {os.path.abspath(source) for source in source_folders(names)}  # noqa: PTH100
        parents = {os.path.dirname(os.path.abspath(path)) for path in paths}  # noqa: PTH100, PTH120
        root = common_folder(searched | parents)  # relative to it, the paths of images are unique
        result = _explain_images(
            classifier, paths, root, folder, method=method, target=target, layer=layer, style=style
        )
    return replace(result, notes=tuple(notes.lines))


@contextmanager
def open_model_and_images(
    model: str | Path | Classifier,
    names: list[str],
    folders: Sequence[Path],
    notes: Notes,
    preprocess: PreprocessLike | None,
    compute: Compute,
    *,
    force: bool,
) -> Iterator[tuple[Classifier, list[str]]]:
    """Yield the model and the paths of the images. The first of the `folders`, the output, is locked meanwhile."""
    for folder in folders:
        check_outside("--out", folder, source_folders(names))
    paths = list(dict.fromkeys(find_pictures(names, notes)[0]))
    for folder in folders:
        check_not_among_images(folder, paths)
    with exclusive_out_folder(folders[0], (), force=force):
        classifier = open_model(model, notes, compute.device, preprocess)
        if paths:
            classifier.preprocess.check_known()
        yield classifier, paths


def _explain_images(
    classifier: Classifier,
    paths: list[str],
    root: str,
    out: Path,
    *,
    method: Method,
    target: str | int,
    layer: int | None,
    style: Style,
) -> Explanations:
    """Write the explanation of each image to a separate folder, and a page that links to all of them."""
    from urllib.parse import quote_from_bytes

    from vitkit.data.decode import UnreadableImageError
    from vitkit.explanation.draw import paper_sheet, thumbnail, to_png
    from vitkit.text.pages import as_file, component, image, panel, write_page

    rows: list[str] = []  # HTML, one for each explained image
    pairs: list[tuple[Image.Image, Image.Image]] = []  # for the sheet
    result = Explanations(method, {})
    for done, path in enumerate(paths):
        progress("explaining", done, len(paths))
        try:
            explanation = classifier.explain(path, method, target, layer)
        except (UnreadableImageError, UnansweredError) as error:
            result.unreadable[path] = str(error)
            continue
        subfolder = Path(_IMAGES) / os.path.relpath(path, root)
        (out / subfolder).mkdir(parents=True, exist_ok=True)
        explanation.save(out / subfolder)
        result.explained[path] = out / subfolder

        name = escape(public_path(path))
        title = f"{escape(explanation.target)} {explanation.probability:.3f}"
        link = f"{quote_from_bytes(os.fsencode(subfolder.as_posix()))}/index.html"  # file names may not be UTF-8
        if len(explanation.methods) == 1:
            jpeg = thumbnail(explanation.overlay(explanation.methods[0], _THUMBNAIL), _THUMBNAIL)
            picture = f'<a href="{link}">{image(public_path(path), jpeg, "jpeg")}</a>'
            rows.append(f"<figure>{picture}<figcaption>{title}<br>{name}</figcaption></figure>")
        else:
            heading = f'<h2>{title} <span class="soft">{name}</span></h2>'
            methods = explanation.thumbnails(link, has_texts=not rows)
            rows.append(f'<section class="panel">{heading}{methods}</section>')
        if style == "paper" and len(pairs) < _MAX_IN_SHEET:
            pairs.append(_photograph_and_attention(explanation, method))
    progress("explaining", len(paths), len(paths))
    if result.is_empty:
        return result

    by_method = "by all methods" if method == "all" else f"by the method {method}"
    body = [
        "<h1>Where does the model look?</h1>",
        f"<p>{escape(result.count)}, explained {by_method}. Click a picture for its page.</p>",
    ]
    for path, reason in result.unreadable.items():
        body.append(component("finding", "warning", f"{public_path(path)}: {reason}"))
    sheet = None
    if pairs:
        sheet = out / "attention.png"
        figure = paper_sheet(pairs)
        for kind in (".svg", ".pdf"):
            write_bytes(sheet.with_suffix(kind), as_file(lambda: figure, kind))
        png = to_png(figure)
        write_bytes(sheet, png)
        which = "" if len(pairs) == len(rows) else f" (the first {len(pairs)} of {len(rows)} images)"
        body.append(panel(f"Input and attention, as in the paper's Figure 6{which}", image("attention", png, "png")))
    if method == "all":
        body += rows
    else:
        body.append(f'<section class="panel"><div class="pictures large">{"".join(rows)}</div></section>')
    page = out / "index.html"
    write_page(page, f"vitkit explain: {method}", body)
    return replace(result, page=page, sheet=sheet)


def _photograph_and_attention(explanation: Explanation, method: Method) -> tuple[Image.Image, Image.Image]:
    """Return the crop of the photograph that the model sees, and the same crop multiplied by the map."""
    from vitkit.explanation.draw import fit, masked

    photograph, box = fit(explanation.photograph, explanation.box, _SIDE_IN_SHEET)
    left, right = _round_interval(box[0], box[2], photograph.width)
    top, bottom = _round_interval(box[1], box[3], photograph.height)
    crop = (left, top, right, bottom)
    return photograph.crop(crop), masked(photograph, explanation.maps[method], box).crop(crop)


def _round_interval(low: float, high: float, size: int) -> tuple[int, int]:
    """Round the ends of an interval to whole pixels from 0 to `size` that are at least one pixel apart."""
    first = min(max(round(low), 0), size - 1)
    return first, max(min(round(high), size), first + 1)
