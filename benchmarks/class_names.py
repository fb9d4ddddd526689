"""The names of ImageNet-21k's classes: `python benchmarks/class_names.py [--smoke]` writes them into the package.

Beside them WordNet's ids of ImageNet-1k's classes, in the order of its heads.

The order is that of Google's files (21,843 classes), as timm lists its synsets; a name is the first lemma that WordNet
has for the synset. WordNet's licence, which stands beside the names, permits both.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from timm.data import ImageNetInfo

import vitkit.weights

FILE = Path(vitkit.weights.__file__).with_name("imagenet21k_classes.txt")


def names() -> list[str]:
    known = ImageNetInfo("imagenet21k_goog")
    descriptions = [known.index_to_description(index) for index in range(known.num_classes())]
    return [description.partition(",")[0].strip() for description in descriptions]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="print the first three alone")
    found = names()
    if parser.parse_args().smoke:
        print(*found[:3], sep="\n")
        return
    ids = ImageNetInfo("imagenet-1k").label_names()
    FILE.with_name("imagenet_synsets.txt").write_text("".join(f"{own}\n" for own in ids), encoding="utf-8")
    FILE.write_text("".join(f"{name}\n" for name in found), encoding="utf-8")
    print(f"{FILE}: {len(found)} names")


if __name__ == "__main__":
    main()
