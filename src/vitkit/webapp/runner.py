"""`python -m vitkit.webapp.runner RUNS`: works on a studio's queue of trainings until it is empty."""

from __future__ import annotations

import sys
from pathlib import Path

from vitkit.webapp.jobs import work

if __name__ == "__main__":
    work(Path(sys.argv[1]))
