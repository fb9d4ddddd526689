"""Pictures and folders of pictures for the tests, small and made on the spot."""

import hashlib
from pathlib import Path

import numpy as np
from PIL import Image


def noise(width: int = 20, height: int = 14, seed: int = 0) -> Image.Image:
    """An RGB picture whose every pixel differs from its neighbours."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def smooth(width: int = 40, height: int = 30) -> Image.Image:
    """An asymmetric RGB picture that survives JPEG's compression."""
    x, y = np.meshgrid(np.linspace(0, 255, width), np.linspace(0, 200, height))
    return Image.fromarray(np.stack([x, y, 255 - (x + y) / 2], axis=-1).astype(np.uint8))


def scene(seed: int, side: int = 32) -> Image.Image:
    """A picture of its own that survives resizing and JPEG: smooth blobs of colour."""
    coarse = np.random.default_rng(seed).integers(0, 256, (5, 5, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((side, side), Image.Resampling.BICUBIC)


def save(picture: Image.Image, path: Path, **options: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    picture.save(path, **options)
    return path


def folder(root: Path, classes: dict[str, int], width: int = 20, height: int = 14) -> Path:
    """`root/class/class_3.png`, every picture another."""
    seed = 0
    for name, images in classes.items():
        (root / name).mkdir(parents=True, exist_ok=True)
        for i in range(images):
            seed += 1
            save(noise(width, height, seed), root / name / f"{name}_{i}.png")
    return root


def fingerprint(root: Path) -> dict[str, str]:
    """Every file and folder below `root`, with the hash of its content."""
    return {
        path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
        for path in sorted(root.rglob("*"))
    }
