"""`vitkit.search`: the images that a text describes best."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Annotated, Any

from vitkit.errors import VitkitError
from vitkit.system.environment import DeviceName
from vitkit.system.progress import Progress, Say, ignore, silent
from vitkit.text.arguments import check_arguments
from vitkit.text.cells import harmless, record
from vitkit.text.fields import Between
from vitkit.verbs.inputs import check_choice, find_pictures, named
from vitkit.verbs.result import Notes, Result
from vitkit.verbs.words import open_words


@dataclass(frozen=True, repr=False)
class Found(Result):
    """The images that a text describes best.

    Attributes:
        text: what was asked for.
        nearest: paths, and the cosine of each image with the text, the best first.
        images: how many were looked at.
        errors: why each of the others could not be read, by path.
        notes: what was assumed of the model, and where images were not looked for.
    """

    text: str
    nearest: tuple[tuple[str, float], ...]
    images: int
    errors: dict[str, str]
    notes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.nearest)

    def to_dict(self) -> dict[str, Any]:
        """All of it."""
        nearest = [{"path": path, "similarity": similarity} for path, similarity in self.nearest]
        return {
            "text": self.text,
            "nearest": nearest,
            "images": self.images,
            "errors": self.errors,
            "notes": list(self.notes),
        }

    def lines(self) -> list[str]:
        """The images as CSV."""
        return ["path,similarity", *(record((harmless(path), f"{own:.6f}")) for path, own in self.nearest)]

    def __repr__(self) -> str:
        return f"<Found: {len(self)} of {self.images} images for {self.text!r}>"

    def _repr_html_(self) -> str:
        from vitkit.text.html import table

        rows = [[escape(path), f"{similarity:.6f}"] for path, similarity in self.nearest]
        return f"<p>{escape(self.text)}</p>" + table(rows, ("path", "similarity"))


@check_arguments
def search(
    model: str | Path,
    sources: str | Path | Iterable[str | Path],
    text: str,
    *,
    top: Annotated[int, Between(1)] = 5,
    batch_size: Annotated[int, Between(1)] = 32,
    device: DeviceName = "auto",
    note: Say = ignore,
    progress: Progress = silent,
) -> Found:
    """The images that a text describes best, by CLIP or SigLIP; as CSV.

    Each has a score: the cosine of the text's vector with the image's.

    On the command line: `vitkit search siglip2-folder photos 'a dog on a beach'`.

    Args:
        model: a folder as on the Hugging Face hub, OpenCLIP's file with its tokenizer beside it, or a published name.
        sources: images, folders (walked), or patterns.
        text: what is looked for, as it is: no template is put around it.
        top: how many images to list, at least 1.
        batch_size: images at a time, at least 1.
        device: `cpu`, `cuda` or `mps`, where images are computed; `auto`: a CUDA GPU if there is one, else the CPU.
        note: told each of the result's notes as it comes.
        progress: told what is being done, how many are done, of how many.

    Raises:
        VitkitError: a value is not allowed, the model cannot be loaded or has no words, or no image can be read.
    """
    check_choice("--device", device, DeviceName)
    if not text.strip():
        raise VitkitError("there is no text to look for")
    notes = Notes(note)
    paths, _ = find_pictures(named(sources), notes)
    own = open_words(model, notes)
    asked = own.vectors([text])[0].numpy()  # (P,)
    similar: dict[str, float] = {}
    errors: dict[str, str] = {}
    for done, (path, outcome) in enumerate(own.images.to(device).embed(paths, "head", batch_size), start=1):
        if isinstance(outcome, str):
            errors[path] = outcome
        else:
            similar[path] = float(outcome @ asked)
        progress("searching", done, len(paths))
    if not similar:
        raise VitkitError(f"none of the {len(paths)} images can be read; the first: {next(iter(errors.values()))}")
    nearest = sorted(similar.items(), key=lambda item: -item[1])[:top]
    return Found(text, tuple(nearest), len(similar), errors, tuple(notes.lines))
