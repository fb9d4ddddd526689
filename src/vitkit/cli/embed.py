"""`vitkit embed`: what a model sees in images, as vectors; and the images that are most like one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from vitkit.cli.arguments import ModelSource, check_out, find_pictures, load_model, source_folders
from vitkit.errors import VitkitError

if TYPE_CHECKING:
    import numpy.typing as npt


def embed(
    model: ModelSource,
    sources: Annotated[list[str], typer.Argument(metavar="SRC...", help="Images, folders (walked), or patterns.")],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write to this .npz file.")] = None,
    what: Annotated[
        Literal["head", "class", "mean", "patches"],
        typer.Option("--what", help="What the head reads, the class token, the patches' mean, or every patch."),
    ] = "head",
    near: Annotated[Path | None, typer.Option("--near", help="List the images most like this one.")] = None,
    top: Annotated[int, typer.Option("--top", min=1, help="With --near: how many.")] = 5,
    batch_size: Annotated[int, typer.Option("--batch-size", min=1, help="Images at a time.")] = 32,
    force: Annotated[bool, typer.Option("--force", help="Write over --out.")] = False,
) -> None:
    """Features of each image, from the same pixels as predictions; an .npz file with paths, features and errors.

    Example: vitkit embed runs/digits-1 photos -o features.npz
    """
    _check(out, near, what, sources, force=force)
    paths, _ = find_pictures(sources)
    from vitkit.cli.progress import Bar

    classifier = load_model(model)
    rows: list[tuple[str, Any]] = []
    with Bar() as bar:
        for path, outcome in classifier.embed(paths, what, batch_size):
            rows.append((path, outcome))
            bar("embedding", len(rows), len(paths))
    readable = [(path, vector) for path, vector in rows if not isinstance(vector, str)]
    if not readable:
        raise VitkitError(f"none of the {len(rows)} images can be read; the first: {rows[0][1]}")
    if out is not None:
        _write(out, rows, readable, what)
    if near is not None:
        ((_, query),) = classifier.embed([near], what)
        if isinstance(query, str):
            raise VitkitError(f"--near {near}: {query}")
        _print_nearest(query, readable, top)


def _check(out: Path | None, near: Path | None, what: str, sources: list[str], *, force: bool) -> None:
    if out is None and near is None:
        raise VitkitError("say where to: --out FILE.npz; or what to look for: --near IMAGE")
    if near is not None and what == "patches":
        raise VitkitError("--near compares one vector an image: --what head, class or mean, not patches")
    if near is not None and not near.is_file():
        raise VitkitError(f"--near {near}: no such file")
    if out is None:
        return
    check_out(out, (".npz",), source_folders(sources))
    if out.exists() and not force:
        raise VitkitError(f"--out {out} exists: choose a new name, or --force to write over it")


def _write(out: Path, rows: list[tuple[str, Any]], readable: list[tuple[str, Any]], what: str) -> None:
    import numpy as np

    from vitkit.files import replacing

    unreadable = [(path, reason) for path, reason in rows if isinstance(reason, str)]
    with replacing(out) as temporary, temporary.open("wb") as file:
        np.savez(
            file,
            paths=np.array([path for path, _ in readable]),
            features=np.stack([vector for _, vector in readable]),
            what=np.array(what),
            unreadable=np.array([path for path, _ in unreadable], dtype=str),
            errors=np.array([reason for _, reason in unreadable], dtype=str),
        )
    shape = "x".join(map(str, (len(readable), *readable[0][1].shape)))
    print(f"{len(rows)} images ({len(unreadable)} unreadable), eager, float32: {shape} features in {out}")


def _print_nearest(query: npt.NDArray[Any], readable: list[tuple[str, Any]], top: int) -> None:
    """By cosine similarity, the most alike first."""
    import numpy as np

    vectors = np.stack([vector for _, vector in readable])
    similarity = vectors @ query / (np.linalg.norm(vectors, axis=1) * np.linalg.norm(query))
    print("path,similarity")
    for i in np.argsort(-similarity, kind="stable")[:top]:
        print(f"{readable[i][0]},{similarity[i]:.6f}")
