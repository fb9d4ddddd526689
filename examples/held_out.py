"""Print the paths of a few images that a run has never trained on: `python examples/held_out.py RUN [HOW_MANY]`."""

import sys
from pathlib import Path

from vitkit.data import split_from_file

run, how_many = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 5
table = split_from_file(run / "split.json").of_split("test")
for index in range(0, len(table), max(len(table) // how_many, 1))[:how_many]:
    print(table.file(index))
