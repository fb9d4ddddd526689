"""Files that somebody else has made or changed: nothing in them runs, and nothing of them is believed."""

import pickle
import re
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import photos
from exporting.ready import exported, plain
from refusals import refused
from vitkit.exporting import Pictures, export, load_exported, program
from vitkit.exporting import card as seal


class Bomb:
    """Unpickling it leaves a file in the working directory."""

    def __reduce__(self) -> Any:
        return Path.touch, (Path("exploded"),)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, in which nothing may have exploded in the end."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("command", ["predict model.pt2 photo.png", "info model.pt2", "serve model.pt2 --port 0"])
def test_programs_are_not_opened(command: str, place: Path, vitkit: Any) -> None:
    """PyTorch's reader would run what they contain."""
    photos.save(photos.noise(), place / "photo.png")
    with zipfile.ZipFile(place / "model.pt2", "w") as archive:
        archive.writestr("archive/data/sample_inputs/model.pt", pickle.dumps(Bomb()))
    outcome = vitkit(*command.split())
    assert outcome.code == 2
    assert len(outcome.err.splitlines()) == 1 and "model folder that it was made from" in outcome.err
    assert not (place / "exploded").exists()


def test_a_program_says_nothing_of_the_folders_it_was_made_in() -> None:
    content = exported(".pt2").read_bytes()
    assert str(Path(program.__file__).parent).encode() not in content
    assert b".py" not in content


def external(model: Any) -> None:
    tensor = model.graph.initializer[0]
    tensor.data_location = 1
    entry = tensor.external_data.add()
    entry.key, entry.value = "location", "/etc/passwd"


def subgraph(model: Any) -> None:
    attribute = model.graph.node[0].attribute.add()
    attribute.name, attribute.type = "then_branch", 5
    attribute.g.name = "inner"


ONNX_ATTACKS: dict[str, Callable[[Any], None]] = {
    "weights of another file": external,
    "a graph within": subgraph,
    "an operation of another maker": lambda own: setattr(own.graph.node[0], "domain", "com.evil"),
    "another operation": lambda own: setattr(own.graph.node[0], "op_type", "If"),
    "an operation set of another maker": lambda own: setattr(own.opset_import.add(), "domain", "com.evil"),
    "a function": lambda own: setattr(own.functions.add(), "name", "evil"),
    "training": lambda own: setattr(own.training_info.add().algorithm, "name", "evil"),
    "settings of the runtime": lambda own: setattr(own.metadata_props.add(), "key", "ort_config"),
}


@pytest.mark.parametrize("attack", ONNX_ATTACKS.values(), ids=ONNX_ATTACKS)
def test_an_onnx_file_with_others_is_refused(attack: Callable[[Any], None], place: Path) -> None:
    import onnx

    model = onnx.load(exported(".onnx"))
    attack(model)
    (place / "model.onnx").write_bytes(seal.with_checksum(model.SerializeToString()))
    with refused("exporting.file-foreign"):
        load_exported(place / "model.onnx")


XML_ATTACKS = {
    "a document type": (b"<net ", b'<!DOCTYPE net [<!ENTITY a "b">]><net '),
    "another operation": (b'type="MatMul"', b'type="If"'),
    "another set of operations": (b'type="MatMul" version="opset1"', b'type="MatMul" version="evil"'),
    "a graph within": (b"<edges>", b"<body></body><edges>"),
    "weights from elsewhere": (b'offset="0"', b'offset="99999999"'),
    "weights before the beginning": (b'offset="0"', b'offset="-8"'),
    "a constant that lies nowhere": (b'type="MatMul"', b'type="Const"'),
    "a word of a newer runtime": (b"<data shape", b'<data library="evil.so" shape'),
    "another encoding": (b'<?xml version="1.0"?>', b'<?xml version="1.0" encoding="UTF-16"?>'),
}


@pytest.mark.parametrize(("old", "new"), XML_ATTACKS.values(), ids=XML_ATTACKS)
def test_an_openvino_model_with_others_is_refused(old: bytes, new: bytes, place: Path) -> None:
    shutil.copytree(exported(".xml").parent, place, dirs_exist_ok=True)
    content = (place / "model.xml").read_bytes()
    assert old in content
    content = content.replace(old, new, 1)
    (place / "model.xml").write_bytes(seal.with_checksum(content, (place / "model.bin").read_bytes()))
    with refused("exporting.file-foreign"):
        load_exported(place / "model.xml")


@pytest.mark.parametrize(("file", "is_own"), [("model.onnx", True), ("model.bin", True), ("model.bin", False)])
def test_weights_that_are_not_the_files_own_are_noticed(file: str, is_own: bool, place: Path) -> None:
    shutil.copytree(exported(".onnx" if file == "model.onnx" else ".xml").parent, place, dirs_exist_ok=True)
    content = bytearray((place / file).read_bytes())
    content[len(content) // 2] ^= 1
    if not is_own:
        export(plain(seed=1), place / "other.xml", Pictures("noise", (photos.noise(21, 17, 0),)))
        content = bytearray((place / "other.bin").read_bytes())
    (place / file).write_bytes(content)
    with refused("exporting.file-damaged"):
        load_exported(place / ("model.xml" if file == "model.bin" else file))


def test_a_card_that_was_changed_is_noticed(place: Path) -> None:
    import onnx

    model = onnx.load(exported(".onnx"))
    (entry,) = model.metadata_props
    assert '"f", "g"' in entry.value
    entry.value = entry.value.replace('"f", "g"', '"f"')
    changed = model.SerializeToString()
    stated = re.search(r'"checksum": "([0-9a-f]{64})"', entry.value)
    forged = seal.with_checksum(changed.replace(stated[1].encode(), seal.BLANK.encode()))
    for content in (changed, forged):  # whoever changes it can compute the checksum, too
        (place / "model.onnx").write_bytes(content)
        with refused("exporting.file-damaged"):
            load_exported(place / "model.onnx")
