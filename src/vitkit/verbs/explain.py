"""`vitkit.explain`: where in a photograph an answer comes from, and what a checkpoint is like inside."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from vitkit.errors import UnansweredError, VitkitError
from vitkit.explanation.methods import method_names
from vitkit.system.devices import DeviceName
from vitkit.system.files import without_place
from vitkit.system.progress import Progress, Say, silent, unsaid
from vitkit.text.arguments import check_arguments
from vitkit.text.words import plural
from vitkit.verbs.anatomy import Anatomy, draw_anatomy
from vitkit.verbs.choices import check_choice
from vitkit.verbs.inputs import find_pictures, named, open_model, path_of, source_folders
from vitkit.verbs.notes import Notes
from vitkit.verbs.places import check_outside, sole_out_folder
from vitkit.verbs.result import Result

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
    out: str | Path | None = None,
    *,
    method: Method = "gradient",
    target: str | int = "top",
    layer: int | None = None,
    anatomy: bool = False,
    preprocess: PreprocessLike | None = None,
    device: DeviceName = "auto",
    force: bool = False,
    note: Say = unsaid,
    progress: Progress = silent,
) -> Explanations | Anatomy:
    """Pictures of what an answer rests on: maps upon each photograph, or with `anatomy` the model's own figures.

    `vitkit.explain("runs/digits-1", "photo.jpg", "explained")` writes the page explained/index.html. The maps of one
    picture, without a file, are `vitkit.load("runs/digits-1").explain("photo.jpg").maps`.

    Args:
        model: run or model folder, checkpoint of any published layout, or published name; or a classifier in memory.
        sources: images, folders (walked), or patterns.
        out: write into this folder; there is no other way to have the pictures.
        method: how to look inside.
        target: the class to explain: by name, by number, or `top`, the most probable.
        layer: for the methods that look at one: this layer; -1 is the last.
        anatomy: filters, positions and attention distances, as in the paper.
        preprocess: how images are read, where the model does not say it: settings such as
            `resize=256,crop=224,interpolation=bilinear,mean=0.5,std=0.5`, whose weights they are (google, augreg, deit,
            torchvision or dinov2), or a file; as of `vitkit.load`.
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
        classifier = open_model(model, notes, progress, device, preprocess)
        if anatomy:
            found = draw_anatomy(classifier, paths, folder, progress)
        else:
            root = _common_root(paths, source_folders(names))
            found = _explain_images(classifier, paths, root, folder, (method, target, layer), progress)
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
    classifier: Classifier,
    paths: list[str],
    root: str,
    out: Path,
    how: tuple[Method, str | int, int | None],
    progress: Progress,
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
