"""Photographs as phones keep them, from training to answers."""

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np
import pillow_heif
import pytest
from PIL import Image

import runs


@pytest.fixture(scope="module")
def phone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set as HEIC files, larger than the model's input."""
    pillow_heif.register_heif_opener()
    root = runs.photos(tmp_path_factory.mktemp("phone") / "photos", images=6)
    for number, file in enumerate(sorted(root.rglob("*.png"))):
        kind = ".heic" if number % 2 else ".avif"
        Image.open(file).resize((64, 64), Image.Resampling.NEAREST).save(file.with_suffix(kind), quality=95)
        file.unlink()
    return root


def test_a_phones_photographs_from_training_to_answers(vitkit: Any, phone: Path, tmp_path: Path) -> None:
    run, flags = tmp_path / "run", list(runs.FLAGS)
    flags[flags.index("--epochs") + 1] = "1"
    assert vitkit("train", phone, "-o", run, *flags).code == 0
    broken = tmp_path / "new" / "broken.heic"
    broken.parent.mkdir()
    whole = sorted(phone.rglob("*.heic"))[0]
    broken.write_bytes(whole.read_bytes()[:300])
    (tmp_path / "new" / "a.heic").write_bytes(whole.read_bytes())
    (tmp_path / "new" / "b.avif").write_bytes(sorted(phone.rglob("*.avif"))[0].read_bytes())
    outcome = vitkit("predict", run, tmp_path / "new")
    assert outcome.code == 1
    rows = {Path(row["path"]).name: row for row in csv.DictReader(io.StringIO(outcome.out))}
    assert rows["a.heic"]["error"] == rows["b.avif"]["error"] == ""
    assert rows["a.heic"]["confidence"]
    assert "damaged" in rows["broken.heic"]["error"]
    assert vitkit("doctor", phone).code in (0, 1)
    assert vitkit("explain", run, tmp_path / "new" / "a.heic", "-o", tmp_path / "why").code == 0
    assert vitkit("embed", run, tmp_path / "new", "-o", tmp_path / "features.npz").code == 0
    with np.load(tmp_path / "features.npz") as found:
        assert len(found["paths"]) == 2
