"""Make what the notebooks work on, in the current folder: `python prepare.py [FLOWERS [WEIGHTS]]`.

photos/      80 small photographs of each class of FLOWERS, a folder of photographs in class folders. Without it,
             TensorFlow's `flower_photos` is downloaded (229 MB).
deit_tiny/   DeiT-Ti, trained on ImageNet, from the checkpoint WEIGHTS. Without it, it is downloaded (23 MB).

What is there already is kept.
"""

import sys
from pathlib import Path

import vitkit
from vitkit.data import read_source
from vitkit.data.decode import decode

EACH, SIDE = 80, 224  # photographs of a class; pixels of the longer side


def prepare(flowers: str = "flower_photos", weights: str = "deit_tiny_patch16_224") -> None:
    """Make photos/ and deit_tiny/ unless they are there."""
    if not Path("photos").exists():
        table = read_source(flowers)
        for label, name in enumerate(table.classes):
            folder = Path("photos", name)
            folder.mkdir(parents=True)
            images = [index for index, own in enumerate(table.labels) if own == label][:EACH]
            for number, index in enumerate(images):
                image = decode(table.file(index))
                image.thumbnail((SIDE, SIDE))
                image.save(folder / f"{number:02}.jpg", quality=90)
    if not Path("deit_tiny").exists():
        vitkit.load(weights).save("deit_tiny")


if __name__ == "__main__":
    prepare(*sys.argv[1:])
    print(sum(1 for _ in Path("photos").rglob("*.jpg")), "photographs in photos/, DeiT-Ti in deit_tiny/")
