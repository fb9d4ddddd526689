"""Files that somebody else has made or changed: nothing in them runs, and nothing of them is believed."""

from __future__ import annotations

import json
import pickle
import re
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import photos
from tiny import VARIETY, build, images
from vitkit.classifier import Classifier
from vitkit.data import Preprocess
from vitkit.errors import VitkitError
from vitkit.exporting import Pictures, export, load_exported, program
from vitkit.exporting import card as seal
from vitkit.exporting import program as program_archive

FILES = ("model.onnx", "model.xml", "model.pt2")
Entries = dict[str, bytes]


class Bomb:
    """Unpickling it leaves a file in the working directory."""

    def __reduce__(self) -> Any:
        return Path.touch, (Path("exploded"),)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a file of each format, which tests may read but not change."""
    folder = tmp_path_factory.mktemp("exported")
    own = Classifier(
        build(layers=1, position="sincos_2d"), tuple("abcdefg"), Preprocess(size=(12, 16)), temperature=1.5
    )
    for file in FILES:
        export(own, folder / file, Pictures("noise", tuple(photos.noise(21, 17, seed) for seed in range(3))))
    return folder


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, in which nothing may have exploded in the end."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def forge(exported: Path, path: Path, change: Callable[[Entries], Entries], root: str = "archive/") -> None:
    with zipfile.ZipFile(exported / "model.pt2") as archive:
        entries = {name.removeprefix("archive/"): archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in program_archive.sealed(change(entries)).items():  # a forger can compute it too
            archive.writestr(root + name, content)


def in_model(change: Callable[[dict[str, Any]], None]) -> Callable[[Entries], Entries]:
    def changed(entries: Entries) -> Entries:
        described = json.loads(entries[program_archive.MODEL_ENTRY])
        change(described)
        return {**entries, program_archive.MODEL_ENTRY: json.dumps(described).encode()}

    return changed


def opaque(entries: Entries) -> Entries:
    evil = {"path_name": "opaque_obj_0", "is_param": False, "use_pickle": False, "tensor_meta": None}
    return {
        **entries,
        "data/constants/model_constants_config.json": json.dumps({"config": {"evil": evil}}).encode(),
        "data/constants/opaque_obj_0": pickle.dumps(Bomb()),
    }


def pickled_weight(entries: Entries) -> Entries:
    name = "data/weights/model_weights_config.json"
    content = entries[name].replace(b'"use_pickle": false', b'"use_pickle": true', 1)
    return {**entries, name: content, "data/weights/weight_0": pickle.dumps(Bomb())}


def evaluated(described: dict[str, Any]) -> None:
    values = described["graph_module"]["graph"]["sym_int_values"]
    next(iter(values.values()))["as_expr"]["expr_str"] = "__import__('pathlib').Path('exploded').touch()"


def guarded(described: dict[str, Any]) -> None:
    described["guards_code"] = ["__import__('pathlib').Path('exploded').touch()"]


def other_operation(target: str) -> Callable[[dict[str, Any]], None]:
    def change(described: dict[str, Any]) -> None:
        described["graph_module"]["graph"]["nodes"][1]["target"] = target

    return change


ATTACKS: dict[str, Callable[[Entries], Entries]] = {
    "pickled weights": lambda own: {**own, "data/weights/model.pt": pickle.dumps(Bomb())},
    "pickled constants": lambda own: {**own, "data/constants/model.pt": pickle.dumps(Bomb())},
    "an opaque object": opaque,
    "a weight called pickled": pickled_weight,
    "an expression": in_model(evaluated),
    "a guard": in_model(guarded),
    "sample inputs in other letters": lambda own: {**own, "data/Sample_inputs/model.pt": pickle.dumps(Bomb())},
    "another model": lambda own: {**own, "models/other.json": own["models/model.json"]},
    "a compiled model": lambda own: {**own, "data/aotinductor/model/wrapper.so": b"ELF"},
    "a way out of the archive": lambda own: {**own, "../../exploded": b""},
    "an operation of Python": in_model(other_operation("_operator.getitem")),
    "a function of math": in_model(other_operation("math.sqrt")),
    "an extension": in_model(other_operation("#evil")),
    "a file operation": in_model(other_operation("torch.ops.aten.from_file.default")),
}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_a_program_with_anything_else_in_it_is_refused(
    exported: Path, attack: Callable[[Entries], Entries], place: Path
) -> None:
    forge(exported, place / "model.pt2", attack)
    with pytest.raises(VitkitError, match=r"is not a program .*: it is refused") as caught:
        load_exported(place / "model.pt2")
    assert "\n" not in str(caught.value)
    assert not (place / "exploded").exists()


@pytest.mark.parametrize("factors", [({"as_ints": [1]}, {"as_int": 10**12}), ({"as_int": 10**12}, {"as_int": 10**12})])
def test_a_program_multiplies_sizes_alone(factors: tuple[dict[str, Any], ...], exported: Path, place: Path) -> None:
    """A list times a large number would fill the memory, and a square of a square of a square take forever."""

    def multiply(described: dict[str, Any]) -> None:
        inputs = [{"name": "", "arg": factor, "kind": 1} for factor in factors]
        described["graph_module"]["graph"]["nodes"][1] |= {"target": "_operator.mul", "inputs": inputs}

    forge(exported, place / "model.pt2", in_model(multiply))
    forged = load_exported(place / "model.pt2")
    with pytest.raises(VitkitError, match="multiplies something other than sizes"):
        forged.probabilities(torch.zeros(2, 3, *forged.preprocess.size))


@pytest.mark.parametrize(
    "operation", ["_native_batch_norm_legit_no_training.default", "_native_batch_norm_legit.no_stats"]
)
def test_a_batch_norm_reads_nothing_beyond_its_statistics(operation: str) -> None:
    """PyTorch does not compare their size with the number of channels."""
    compute, few = program_archive._operation(f"torch.ops.aten.{operation}"), torch.ones(1)
    rest = (few, few, 0.1, 1e-5) if operation.endswith("training.default") else (True, 0.1, 1e-5)
    with pytest.raises(VitkitError, match="sizes of a batch norm differ"):
        compute(torch.zeros(1, 5000, 2), few, few, *rest)


def test_pickled_sample_inputs_are_never_read(exported: Path, place: Path) -> None:
    forge(exported, place / "model.pt2", lambda own: {**own, "data/sample_inputs/model.pt": pickle.dumps(Bomb())})
    assert load_exported(place / "model.pt2").logits(images(2)).shape == (2, 7)
    assert not (place / "exploded").exists()


def test_the_older_layout_is_refused(exported: Path, place: Path) -> None:
    with zipfile.ZipFile(place / "model.pt2", "w") as archive:
        archive.writestr("version", "8.0")
        for name in ("serialized_exported_program.json", "serialized_state_dict.pt", "serialized_constants.pt"):
            archive.writestr(name, pickle.dumps(Bomb()))
    with pytest.raises(VitkitError, match=r"is refused for its entry 'version'"):
        load_exported(place / "model.pt2")
    assert not (place / "exploded").exists()


def test_an_archive_that_says_an_entry_twice_is_refused(exported: Path, place: Path) -> None:
    shutil.copy(exported / "model.pt2", place)
    with zipfile.ZipFile(place / "model.pt2", "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr("archive/models/model.json", "{}")
    with pytest.raises(VitkitError, match=r"is refused for its entry 'archive/models/model.json'"):
        load_exported(place / "model.pt2")


def test_a_compressed_archive_is_refused(exported: Path, place: Path) -> None:
    with zipfile.ZipFile(place / "model.pt2", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/models/model.json", b" " * 10_000_000)
    with pytest.raises(VitkitError, match="which is compressed"):
        load_exported(place / "model.pt2")


def test_a_program_says_nothing_of_the_folders_it_was_made_in(exported: Path) -> None:
    content = (exported / "model.pt2").read_bytes()
    assert str(Path(program.__file__).parent).encode() not in content
    assert b".py" not in content


@pytest.mark.accept
@pytest.mark.parametrize("fields", VARIETY.values(), ids=VARIETY)
def test_our_own_program_of_every_model_is_let_through(fields: dict[str, Any], tmp_path: Path) -> None:
    from vitkit.exporting import Card

    model = build(**fields)
    own = Classifier(model, tuple("abcdefg"), Preprocess(size=model.config.image_size))
    program.write(model, tmp_path / "model.pt2", Card.of(own, "float32").to_json(), None, torch.float32)
    assert load_exported(tmp_path / "model.pt2").classes == own.classes


# --- ONNX -------------------------------------------------------------------------------------------


def spoil_onnx(exported: Path, path: Path, change: Callable[[Any], None]) -> None:
    import onnx

    model = onnx.load(exported / "model.onnx")
    change(model)
    path.write_bytes(seal.sealed(model.SerializeToString()))


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
def test_an_onnx_file_with_anything_else_in_it_is_refused(
    exported: Path, attack: Callable[[Any], None], place: Path
) -> None:
    spoil_onnx(exported, place / "model.onnx", attack)
    with pytest.raises(VitkitError, match="is not an ONNX file written by vitkit"):
        load_exported(place / "model.onnx")


# --- OpenVINO ---------------------------------------------------------------------------------------


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
def test_an_openvino_model_with_anything_else_in_it_is_refused(
    exported: Path, old: bytes, new: bytes, place: Path
) -> None:
    shutil.copy(exported / "model.bin", place)
    content = (exported / "model.xml").read_bytes()
    assert old in content
    content = seal.sealed(content.replace(old, new, 1), (place / "model.bin").read_bytes())
    (place / "model.xml").write_bytes(content)
    with pytest.raises(VitkitError, match="is not an OpenVINO model written by vitkit"):
        load_exported(place / "model.xml")


def test_a_graph_that_takes_no_images_is_refused(exported: Path, place: Path) -> None:
    shutil.copy(exported / "model.bin", place)
    content = (exported / "model.xml").read_bytes()
    (where,) = set(re.findall(rb'shape="\?,3,12,16"', content))
    content = seal.sealed(content.replace(where, b'shape="0,3,12,16"'), (place / "model.bin").read_bytes())
    (place / "model.xml").write_bytes(content)
    with pytest.raises(VitkitError, match="damaged: its batch size is 0"):
        load_exported(place / "model.xml")


# --- Damage -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", ["model.onnx", "model.bin", "model.pt2"])
def test_weights_that_were_written_over_are_noticed(exported: Path, file: str, place: Path) -> None:
    for name in ("model.xml", "model.bin", file):
        shutil.copy(exported / name, place)
    content = bytearray((place / file).read_bytes())
    content[len(content) // 2 : len(content) // 2 + 4096] = bytes(4096)
    (place / file).write_bytes(content)
    with pytest.raises(VitkitError, match=r"damaged|cannot be read as|is not a"):
        load_exported(place / ("model.xml" if file == "model.bin" else file))


@pytest.mark.parametrize("file", ["model.onnx", "model.bin"])
def test_one_bit_of_a_weight_is_noticed(exported: Path, file: str, place: Path) -> None:
    for name in ("model.xml", "model.bin", file):
        shutil.copy(exported / name, place)
    content = bytearray((place / file).read_bytes())
    content[len(content) // 2] ^= 1
    (place / file).write_bytes(content)
    with pytest.raises(VitkitError, match="is damaged: its content does not match its checksum"):
        load_exported(place / ("model.xml" if file == "model.bin" else file))


def test_weights_of_another_run_are_noticed(exported: Path, place: Path) -> None:
    other = Classifier(build(layers=1, position="sincos_2d", seed=1), tuple("abcdefg"), Preprocess(size=(12, 16)))
    export(other, place / "model.xml", Pictures("noise", (photos.noise(21, 17, 0),)))
    shutil.copy(exported / "model.xml", place)
    with pytest.raises(VitkitError, match="is damaged: its content does not match its checksum"):
        load_exported(place / "model.xml")


CARDS = {
    "a temperature below 0": ('"temperature": 1.5', '"temperature": -1.0', "temperature is -1.0"),
    "a temperature of 0": ('"temperature": 1.5', '"temperature": 0.0', "temperature is 0.0"),
    "no number": ('"temperature": 1.5', '"temperature": NaN', "temperature is nan"),
    "fewer names": ('"f", "g"', '"f"', "it has 7 logits for 6 classes"),
    "no names": ('["a", "b", "c", "d", "e", "f", "g"]', "[]", "classes are"),
    "names that are none": ('"f", "g"', '"f", 3', "classes are"),
}


@pytest.mark.parametrize(("old", "new", "complaint"), CARDS.values(), ids=CARDS)
@pytest.mark.parametrize("is_forged", [False, True], ids=["changed", "forged"])
def test_a_card_that_was_changed_is_noticed(
    exported: Path, old: str, new: str, complaint: str, is_forged: bool, place: Path
) -> None:
    def change(entries: Entries) -> Entries:
        card = entries[program_archive.CARD_ENTRY]
        assert old.encode() in card
        return {**entries, program_archive.CARD_ENTRY: card.replace(old.encode(), new.encode())}

    if is_forged:
        forge(exported, place / "model.pt2", change)
    else:
        program_archive.write_entries(change(program_archive.read_entries(exported / "model.pt2")), place / "model.pt2")
    with pytest.raises(VitkitError, match=complaint if is_forged else "does not match its checksum"):
        load_exported(place / "model.pt2")
