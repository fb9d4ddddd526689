"""A run opens no file for reading that it has written, and each photograph as rarely as possible."""

import json
import os
import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest

import runs
import warm
from vitkit.data.file_facts import stamp_of

# Notes each file that is opened for reading: a hook of the interpreter, which cannot be removed again.
WATCHED = """
import json, os, sys
from pathlib import Path

photos, out, note = (os.path.realpath(text) for text in sys.argv[1:4])
opened = []

def hook(event, arguments):
    if event == "open" and isinstance(arguments[0], (str, os.PathLike)) and arguments[2] & 3 == os.O_RDONLY:
        path = os.path.realpath(os.fspath(arguments[0]))
        if path.startswith((photos + os.sep, out + os.sep)) and not os.path.isdir(path):
            opened.append(path)

sys.addaudithook(hook)
from vitkit.training import Recipe, train

train(Recipe(**{"data": photos, "workers": 0, **json.loads(sys.argv[4])}), out)
Path(note).write_text(json.dumps(opened))
"""


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = runs.photos(tmp_path_factory.mktemp("opened") / "photos", images=16, noise=60)
    while any(stamp_of(path) is None for path in folder.rglob("*.png")):  # files that have just changed are read again
        time.sleep(0.1)
    return folder


def test_no_file_is_read_back_or_often(photos: Path, start: Path, tmp_path: Path) -> None:
    environment = os.environ | {"VITKIT_CACHE": str(tmp_path / "cache"), "BLANK_PICTURES": "1"}
    fields = {"weights": str(start), "method": "full", "epochs": 2, "lr": 1e-3, "lp_ft": True, "cache": "disk"}
    asked = json.dumps({"precision": "float32", **fields})
    command = [warm.python(), "-c", WATCHED, photos, tmp_path / "run", tmp_path / "note.json", asked]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "report.html").is_file()
    paths = json.loads((tmp_path / "note.json").read_text())
    photographs = Counter(path for path in paths if path.startswith(str(photos.resolve())))
    assert [path for path in paths if path not in photographs] == [], "files of the run"
    assert len(photographs) == 48, "each is examined"
    assert sum(count > 2 for count in photographs.values()) <= 2, "the mistakes that the report explains"
    assert max(photographs.values()) <= 3
