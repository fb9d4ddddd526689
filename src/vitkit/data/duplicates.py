"""Photographs that are there more than once: the same file, or the same picture resized, recompressed or mirrored.

Two pictures are taken for one when their 16 x 16 thumbnails agree in structure (correlation of the greys) and in
colour. Both limits were measured: docs/decisions/0009-duplicates.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from vitkit.data.memory import Facts
from vitkit.data.scan import THUMBNAIL

Kind = Literal["exact", "near", "mirrored"]
Floats = npt.NDArray[np.float32]
LEAST_CORRELATION = 0.985
MOST_DIFFERENCE = 10.0  # root mean square over the thumbnail's 8-bit RGB
# Where this part of the images are near copies of one another, the likeness is of the scene, not of the pictures.
LARGEST_GROUP, LEAST_LARGE = 0.25, 20
_MOST_PAIRS = 100  # for each image, before giving up
_LUMA = np.array([0.299, 0.587, 0.114], np.float32)
_COARSE = 6  # the lowest frequencies in either direction, which rule out nearly all pairs
_BLOCK = 2048


@dataclass(frozen=True)
class Link:
    """Two images, by index, that show one picture. `exact`: equal bytes; `mirrored`: left and right are swapped."""

    first: int
    second: int
    kind: Kind


def find_known(
    new: Sequence[bytes], known: npt.NDArray[np.uint8], progress: Callable[[int, int], None] | None = None
) -> tuple[list[tuple[int, int, Kind]], bool]:
    """Which pictures show one that is known: resized, recompressed or mirrored.

    Args:
        new: thumbnails.
        known: thumbnails, (m, 16, 16, 3).
        progress: told how many of how many have been compared.

    Returns:
        Number of a new picture, number of the known one and kind (near, mirrored), and whether that could be told:
        where a large part of the new ones show the same as one another, as from a camera that never moves, nothing is.
    """
    pixels = np.frombuffer(b"".join(new), np.uint8).reshape(len(new), THUMBNAIL, THUMBNAIL, 3)
    coarse, mirrored = _coarse(pixels)
    others, _ = _coarse(known)
    sides: dict[Kind, Floats] = {"near": coarse, "mirrored": mirrored}
    found: list[tuple[int, int, Kind]] = []
    for start in range(0, len(new), _BLOCK):
        for other in range(0, len(known), _BLOCK):
            block = others[other : other + _BLOCK]
            for kind, side in sides.items():
                likely = np.flatnonzero(side[start : start + _BLOCK] @ block.T >= LEAST_CORRELATION)
                rows, columns = np.divmod(likely, len(block))
                pairs = _confirm(pixels, known, rows + start, columns + other, is_mirrored=kind == "mirrored")
                found += [(i, j, kind) for i, j in pairs]
            if len(found) > _MOST_PAIRS * (len(new) + len(known)):
                return [], False
        if progress is not None:
            progress(min(start + _BLOCK, len(new)), len(new))
    forest = Forest(len(new) + len(known))
    for i, j, _ in found:
        forest.join(i, len(new) + j)
    alike = Counter(forest.find(i) for i in range(len(new)))
    if found and max(alike.values()) > max(LEAST_LARGE, LARGEST_GROUP * len(new)):
        return [], False
    return found, True


def find_duplicates(
    facts: Sequence[Facts], progress: Callable[[int, int], None] | None = None
) -> tuple[list[Link], bool]:
    """Every picture that is there more than once.

    Args:
        facts: of readable images.
        progress: told how many of how many images have been compared.

    Returns:
        Links that connect all copies of a picture, mirrored ones last, and whether near copies could be told: where a
        large part of the images are alike, as from a camera that never moves, only exact ones are linked.
    """
    first_of: dict[bytes, int] = {}
    exact = []
    for i, fact in enumerate(facts):
        first = first_of.setdefault(fact.digest, i)
        if first != i:
            exact.append(Link(first, i, "exact"))
    distinct = list(first_of.values())
    pairs = _near_pairs([facts[i].thumbnail for i in distinct], progress)
    if pairs is None:
        return exact, False
    forest = Forest(len(distinct))
    near = [Link(distinct[i], distinct[j], "near") for i, j in pairs["near"] if forest.join(i, j)]
    apart = [(i, j) for i, j in pairs["mirrored"] if forest.find(i) != forest.find(j)]
    near += [Link(distinct[i], distinct[j], "mirrored") for i, j in apart]  # all: the reader may leave some out
    for i, j in apart:
        forest.join(i, j)
    if near and max(Counter(forest.roots()).values()) > max(LEAST_LARGE, LARGEST_GROUP * len(distinct)):
        return exact, False
    return exact + near, True


class Forest:
    """Things that belong together, by number; each group is known by its lowest one."""

    def __init__(self, things: int) -> None:
        self._above = list(range(things))

    def find(self, thing: int) -> int:
        """The lowest number of the thing's group."""
        while self._above[thing] != thing:
            self._above[thing] = self._above[self._above[thing]]
            thing = self._above[thing]
        return thing

    def join(self, first: int, second: int) -> bool:
        """Make one group of two; False where they were one already."""
        low, high = sorted((self.find(first), self.find(second)))
        self._above[high] = low
        return low != high

    def roots(self) -> list[int]:
        """The group of each thing."""
        return [self.find(thing) for thing in range(len(self._above))]


def connect(links: Sequence[Link], images: int) -> list[int]:
    """A number for each image, the same for all that links connect: the lowest index among them."""
    forest = Forest(images)
    for link in links:
        forest.join(link.first, link.second)
    return forest.roots()


def _near_pairs(
    thumbnails: Sequence[bytes], progress: Callable[[int, int], None] | None
) -> dict[Kind, list[tuple[int, int]]] | None:
    """All pairs of near copies, by kind; None where there are too many to mean anything."""
    n = len(thumbnails)
    pixels = np.frombuffer(b"".join(thumbnails), np.uint8).reshape(n, THUMBNAIL, THUMBNAIL, 3)
    coarse, mirrored = _coarse(pixels)
    sides: dict[Kind, Floats] = {"near": coarse, "mirrored": mirrored}
    pairs: dict[Kind, list[tuple[int, int]]] = {kind: [] for kind in sides}
    for start in range(0, n, _BLOCK):
        for other in range(start, n, _BLOCK):
            for kind, side in sides.items():
                block = coarse[other : other + _BLOCK]
                likely = np.flatnonzero(side[start : start + _BLOCK] @ block.T >= LEAST_CORRELATION)
                rows, columns = np.divmod(likely, len(block))
                first, second = rows + start, columns + other
                own = first < second
                pairs[kind] += _confirm(pixels, pixels, first[own], second[own], is_mirrored=kind == "mirrored")
            if sum(map(len, pairs.values())) > _MOST_PAIRS * n:
                return None
        if progress is not None:
            progress(min(start + _BLOCK, n), n)
    return pairs


def _coarse(pixels: npt.NDArray[np.uint8]) -> tuple[Floats, Floats]:
    """Unit vectors whose products bound the correlation from above, (n, _COARSE ** 2 + 1), and those of the mirrored.

    In the cosine basis the correlation of two pictures is the product of their low frequencies plus that of their
    high ones, and the latter is at most the product of its lengths (Cauchy-Schwarz), kept as one more number.
    """
    n = len(pixels)
    spectrum = cosines() @ _structure(pixels).reshape(n, THUMBNAIL, THUMBNAIL) @ cosines().T
    low = spectrum[:, :_COARSE, :_COARSE].reshape(n, -1)
    rest = np.sqrt(np.maximum((spectrum**2).sum(axis=(1, 2)) - (low**2).sum(axis=1), 0))
    odd = np.tile(np.arange(_COARSE) % 2, _COARSE)  # these horizontal frequencies change sign in a mirror
    return np.hstack([low, rest[:, None]]), np.hstack([low * (1 - 2 * odd), rest[:, None]])


def cosines() -> Floats:
    """(16, 16): the orthonormal discrete cosine basis (DCT-II), a row for each frequency."""
    k, x = np.mgrid[:THUMBNAIL, :THUMBNAIL]
    basis = np.cos(np.pi * k * (2 * x + 1) / (2 * THUMBNAIL)) * np.sqrt(2 / THUMBNAIL)
    basis[0] /= np.sqrt(2)
    return basis.astype(np.float32)


def _structure(pixels: npt.NDArray[np.uint8]) -> Floats:
    """Greys without their mean, at unit length, (n, THUMBNAIL ** 2); zero for a flat picture."""
    grey = (pixels.astype(np.float32) @ _LUMA).reshape(len(pixels), -1)
    grey -= grey.mean(axis=1, keepdims=True)
    length = np.linalg.norm(grey, axis=1, keepdims=True)
    return np.where(length > THUMBNAIL, grey / np.maximum(length, 1e-6), 0)  # a spread below one level is noise


def _confirm(
    pixels: npt.NDArray[np.uint8],
    others: npt.NDArray[np.uint8],
    first: npt.NDArray[np.intp],
    second: npt.NDArray[np.intp],
    *,
    is_mirrored: bool,
) -> list[tuple[int, int]]:
    """Those pairs that agree in structure and in colour."""
    pairs: list[tuple[int, int]] = []
    for start in range(0, len(first), _BLOCK):
        i, j = first[start : start + _BLOCK], second[start : start + _BLOCK]
        left = pixels[i, :, ::-1] if is_mirrored else pixels[i]
        correlation = (_structure(left) * _structure(others[j])).sum(axis=1)
        difference = np.sqrt(((left.astype(np.float32) - others[j]) ** 2).mean(axis=(1, 2, 3)))
        same = (correlation >= LEAST_CORRELATION) & (difference <= MOST_DIFFERENCE)
        pairs += zip(i[same].tolist(), j[same].tolist(), strict=True)
    return pairs
