"""`vitkit.search`: find the images that match a text best."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Annotated, Any

from vitkit.errors import VitkitError
from vitkit.system.environment import DeviceName
from vitkit.system.progress import Progress, Say, ignore, silent
from vitkit.text.arguments import Between, check_arguments
from vitkit.text.cells import harmless, record
from vitkit.verbs.inputs import check_choice, find_pictures, open_images_and_words, source_names
from vitkit.verbs.result import Notes, Result


@dataclass(frozen=True, repr=False)
class SearchResult(Result):
    """The images that match a text best.

        import vitkit

        result = vitkit.search("siglip2-folder", "photos", text="a dog on a beach")
        print(result.nearest[0], result.errors)

    Attributes:
        text: the text of the query.
        nearest: the paths of the images and their cosine similarities with the text, the best first.
        images: the number of images that were compared.
        errors: the reasons why other images could not be read, by path.
        notes: assumptions about the model, and folders that were left out.
    """

    text: str
    nearest: tuple[tuple[str, float], ...]
    images: int
    errors: dict[str, str]
    notes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.nearest)

    def to_dict(self) -> dict[str, Any]:
        """Return everything in plain JSON types."""
        nearest = [{"path": path, "similarity": similarity} for path, similarity in self.nearest]
        return {
            "text": self.text,
            "nearest": nearest,
            "images": self.images,
            "errors": self.errors,
            "notes": list(self.notes),
        }

    def lines(self) -> list[str]:
        """Return the images and their similarities as CSV."""
        return [
            "path,similarity",
            *(record((harmless(path), f"{similarity:.6f}")) for path, similarity in self.nearest),
        ]

    def __repr__(self) -> str:
        return f"<SearchResult: {len(self)} of {self.images} images for {self.text!r}>"

    def _repr_html_(self) -> str:
        from vitkit.text.pages import table

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
) -> SearchResult:
    """Find the images that match a text best, with CLIP or SigLIP.

    The score of an image is the cosine similarity between the vectors of the image and the text, from -1 to 1.

        import vitkit

        for path, score in vitkit.search("siglip2-folder", "photos", "a dog on a beach", top=3).nearest:
            print(path, score)

    On the command line: `vitkit search siglip2-folder photos 'a dog on a beach'`.

    Args:
        model: a folder in the layout of the Hugging Face hub, a file of OpenCLIP with its tokenizer in the same folder,
            or a published name.
        sources: images, folders (including their sub-folders), or glob patterns.
        text: the text to search for; it is used unchanged, without a template.
        top: the number of images to list.
        batch_size: the number of images in a batch.
        device: the device to compute on: `cpu`, `cuda`, `mps`, or `auto` for a CUDA GPU if there is one, else the CPU.
        note: called with each note of the result as soon as it is added.
        progress: called with the current task, the number of finished items and the total number of items.

    Raises:
        VitkitError: a value is not allowed, the model cannot be loaded or has no text encoder, or no image can be read.
    """
    check_choice("--device", device, DeviceName)
    if not text.strip():
        raise VitkitError("the text to search for is empty")
    notes = Notes(note)
    paths, _ = find_pictures(source_names(sources), notes)
    words = open_images_and_words(model, notes)
    query = words.vectors([text])[0].numpy()  # (P,)
    similar: dict[str, float] = {}
    errors: dict[str, str] = {}
    for done, (path, outcome) in enumerate(words.images.to(device).embed(paths, "head", batch_size), start=1):
        if isinstance(outcome, str):
            errors[path] = outcome
        else:
            similar[path] = float(outcome @ query)
        progress("searching", done, len(paths))
    if not similar:
        raise VitkitError(f"none of the {len(paths)} images can be read; the first: {next(iter(errors.values()))}")
    nearest = sorted(similar.items(), key=lambda item: -item[1])[:top]
    return SearchResult(text, tuple(nearest), len(similar), errors, tuple(notes.lines))
