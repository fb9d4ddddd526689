"""What a server answers: what `vitkit.predict` and its like answer, in the form that its description promises."""

import base64
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

import runs
import vitkit
import warm
from browser import browser, watched
from exporting.ready import exported
from refusals import refused
from serving.asking import Program, Tally, ask_all, counted, posted, resident, serving
from serving.conftest import HOSTILE, classifier
from vitkit.serving import Server, version_of
from vitkit.serving.serve import serve
from vitkit.verbs.predict import predict
from vitkit.weights import load

__all__ = ["browser"]
EXACT = vitkit.Compute(backend="eager", precision="float32")


def files(folder: Path, *names: str) -> list[tuple[str, tuple[str, bytes]]]:
    return [("image", (name, (folder / "photos" / name).read_bytes())) for name in names]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "photos").iterdir())


def test_it_answers_as_predict_does_to_the_last_bit(client: httpx.Client, folder: Path) -> None:
    paths = [folder / "photos" / name for name in names(folder)]
    expected = list(predict(folder / "second", paths, top=7, compute=EXACT.replace(batch_size=1)))
    for path, row in zip(paths, expected, strict=True):  # batches of one
        (got,) = client.post("/predict?model=second&top=7", files=files(folder, path.name)).json()["predictions"]
        assert (got["label"], got["confidence"]) == (row.label, row.confidence)
        assert [(place["label"], place["confidence"]) for place in got["top"]] == list(row.top)
    several = next(iter(predict(folder / "several", folder / "photos" / "0.png", compute=EXACT)))
    (got,) = client.post("/predict?model=several", files=files(folder, "0.png")).json()["predictions"]
    assert (got["label"], got["confidence"]) == (several.label, pytest.approx(several.confidence, abs=1e-6))
    (got,) = client.post("/predict", files=files(folder, "dark.png")).json()["predictions"]
    assert "darker or lighter" in got["note"], "as predict notes it"


def test_many_in_a_request_and_many_requests_at_a_time_are_answered_in_order(server: Server, folder: Path) -> None:
    own = names(folder)
    expected = {Path(row.path).name: row for row in predict(folder / "second", folder / "photos", compute=EXACT)}

    def ask(turn: int) -> list[dict[str, Any]]:
        order = own[turn % 5 :]
        answer = httpx.post(f"{server.url}/predict?model=second", files=files(folder, *order), timeout=60)
        found = answer.json()["predictions"]
        assert [row["path"] for row in found] == order
        return found

    with ThreadPoolExecutor(4) as pool:
        for row in (row for found in pool.map(ask, range(6)) for row in found):
            assert row["label"] == expected[row["path"]].label
            assert row["confidence"] == pytest.approx(expected[row["path"]].confidence, abs=1e-6)


def test_all_forms_of_a_request_are_one_and_options_stand_in_the_address_or_beside_the_picture(
    client: httpx.Client, folder: Path
) -> None:
    content = (folder / "photos" / "0.png").read_bytes()
    text = base64.b64encode(content).decode()
    found = [
        client.post("/predict", files={"image": ("0.png", content)}),
        client.post("/predict", json={"image": {"path": "0.png", "data": text}}),
        client.post("/predict", json={"images": [text]}),
        client.post("/predict", content=content, headers={"content-type": "image/png"}),
    ]
    rows = [own.json()["predictions"][0] for own in found]
    assert [row.pop("path") for row in rows] == ["0.png", "0.png", "image 1", "image"]
    assert all(row == rows[0] for row in rows) and len(rows[0]["top"]) == 5
    own = files(folder, "0.png")
    assert "top" not in client.post("/predict", files=own, data={"top": "1"}).json()["predictions"][0]
    assert len(client.post("/predict?top=100", files=own).json()["predictions"][0]["top"]) == 7
    row = client.post("/predict?reject=1", files=own).json()["predictions"][0]
    assert (row["label"], row["rejected"]) == (None, rows[0]["label"])


def test_what_cannot_be_read_is_a_row_with_its_reason(client: httpx.Client, folder: Path) -> None:
    bad = [("image", ("bad.jpg", b"no picture")), ("image", ("empty.png", b""))]
    for sent, status, reasons in (([*files(folder, "0.png"), *bad], 200, [None]), (bad, 422, [])):
        answer = client.post("/predict", files=sent)
        assert answer.status_code == status
        assert [row.get("error") for row in answer.json()["predictions"]] == [*reasons, "not an image", "empty file"]
    assert client.post("/embed", files=bad).status_code == 422
    answer = client.post("/explain", files=bad[:1])
    assert (answer.status_code, answer.json()["error"]) == (422, "not an image")


def test_versions_are_of_the_content(client: httpx.Client, folder: Path) -> None:
    first, second, several = client.get("/models").json()["models"]
    assert first["version"] == version_of(load(folder / "first")) == version_of(classifier(0))
    assert len({first["version"], second["version"], several["version"]}) == 3
    other = classifier(0)
    other.temperature = 1.5
    assert version_of(other) != first["version"]
    assert version_of(replace(classifier(0), trust=b"a record")) != first["version"]
    own = files(folder, "0.png")
    for query, told in (("", first), ("?model=second", second), ("?model=several", several)):
        assert client.post(f"/predict{query}", files=own).json()["version"] == told["version"]
    missing = client.post("/predict?model=other", files=own)
    assert missing.status_code == 404 and second["version"] in missing.json()["error"]


def test_features_are_those_of_the_model(client: httpx.Client, folder: Path) -> None:
    own = load(folder / "first")
    for what in ("head", "class", "mean", "patches"):
        ((_, expected),) = own.embed([folder / "photos" / "1.jpg"], what)
        (row,) = client.post(f"/embed?what={what}", files=files(folder, "1.jpg")).json()["embeddings"]
        np.testing.assert_allclose(np.array(row["features"]), expected, rtol=2e-6, atol=1e-6)


def test_maps_are_those_of_the_model(client: httpx.Client, folder: Path) -> None:
    own, asked = load(folder / "first"), files(folder, "0.png")
    for method in ("gradient", "all"):
        expected = own.explain(folder / "photos" / "0.png", method, target="b")
        found = client.post(f"/explain?method={method}&target=b", files=asked).json()
        assert (found["target"], found["probability"]) == ("b", pytest.approx(expected.probability, abs=1e-6))
        assert found["size"] == list(expected.photograph.size) and found["box"] == list(expected.box)
        assert found["maps"].keys() == expected.maps.keys()
        for name, values in expected.maps.items():
            np.testing.assert_allclose(np.array(found["maps"][name]), values, atol=1e-5)
        assert (found["heads"] is None) == (expected.heads is None)


def test_answers_have_the_keys_of_the_examples(client: httpx.Client, folder: Path) -> None:
    own = files(folder, "0.png")
    models = client.get("/models")
    assert HOSTILE in models.json()["models"][0]["classes"]
    headers = [models.headers[name] for name in ("content-type", "x-content-type-options")]
    assert headers == ["application/json", "nosniff"], "names of classes are text"
    paths = client.get("/openapi.json").json()["paths"]
    assert list(paths) == ["/predict", "/explain", "/embed", "/models", "/health", "/ready", "/metrics"]
    for path in list(paths)[:6]:
        (route,) = paths[path].values()
        examples = {status: own["content"]["application/json"]["example"] for status, own in route["responses"].items()}
        if path in ("/predict", "/explain", "/embed"):  # what is described is taken, and nothing else
            known = {own["name"]: "x" for own in route["parameters"]}
            refusal = client.post(path, params={**known, "nothing": "x"}, files=own).json()
            assert "'nothing'" in refusal["error"] and refusal["error"].endswith(", ".join(known))
            assert refusal.keys() == examples["4XX"].keys()
            asked = route["requestBody"]["content"]["application/json"]["example"]
            told = client.post(path, json=asked).raise_for_status().json()
        else:
            told = client.get(path).json()
        assert keys(told) == keys(examples["200"])


def keys(value: Any) -> Any:
    """The keys of objects and of the first elements of lists, without those of null, which FastAPI leaves out."""
    if isinstance(value, dict):
        return {name: keys(own) for name, own in value.items() if own is not None}
    return [keys(value[0])] if isinstance(value, list) and value else []


def test_errors_have_codes_beside_their_messages(client: httpx.Client, folder: Path) -> None:
    own = {"files": files(folder, "0.png")}
    for (method, path, more), status, code in (
        (("POST", "/predict", {}), 400, "serving.image-missing"),
        (("POST", "/predict?top=x", own), 400, "serving.option-invalid"),
        (("POST", "/predict?nothing=1", own), 400, "serving.option-unknown"),
        (("POST", "/predict?model=nothing", own), 404, "serving.model-unknown"),
        (("POST", "/predict", {"files": files(folder, "0.png") * 41}), 413, "serving.images-too-many"),
        (("GET", "/predict", {}), 405, "serving.method-wrong"),
        (("GET", "/nothing", {}), 404, "serving.route-missing"),
        (("GET", "/models", {"headers": {"host": "evil.example"}}), 421, "serving.host-unknown"),
        (("POST", "/predict", {"headers": {"origin": "http://evil.example"}}), 403, "serving.origin-foreign"),
    ):
        answer = client.request(method, path, **more)
        told = answer.json()
        assert (answer.status_code, told["code"], told.keys()) == (status, code, {"error", "code"}), path


def test_metrics_count_what_was_asked(client: httpx.Client, server: Server, folder: Path) -> None:
    lines = (
        'vitkit_images_total{model="first",outcome="answered"}',
        'vitkit_images_total{model="first",outcome="unreadable"}',
        'vitkit_requests_total{route="/predict",status="200"}',
        'vitkit_requests_total{route="refused",status="421"}',
    )
    before = [counted(server.url, line) for line in lines]
    client.post("/predict", files=[*files(folder, "0.png", "1.jpg"), ("image", ("bad", b"x"))])
    client.get("/models", headers={"host": "evil.example"})
    assert [counted(server.url, line) - was for line, was in zip(lines, before, strict=True)] == [2, 1, 1, 1]
    assert client.get("/metrics").headers["content-type"].startswith("text/plain; version=0.0.4")


def test_a_full_queue_and_a_fault_are_answered(
    server: Server, client: httpx.Client, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(*_: Any) -> Any:
        raise ZeroDivisionError("of secrets")

    own = files(folder, "0.png")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server._service, "predict", broken)
        answer = client.post("/predict", files=own)
        assert (answer.status_code, "secrets" in answer.text) == (500, False)
        assert "of secrets" in caplog.text
        caplog.clear()
        patch.setattr(server._service.workers, "waiting", 40)
        answer = client.post("/predict", files=own)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1"), "nothing is asked"
    assert client.post("/predict", files=own).status_code == 200


_WITHOUT_TORCH = """
import json, sys
sys.modules["torch"] = None  # importing it is an error
import httpx, vitkit

asked = {"content": open(sys.argv[2], "rb").read(), "headers": {"content-type": "image/png"}}
with vitkit.serve(sys.argv[1], port=0, compute=vitkit.Compute(precision="float32")) as server:
    print(json.dumps([httpx.post(server.url + path, **asked).json() for path in ("/predict?top=7", "/explain")]))
assert not [name for name in sys.modules if name.startswith("torch.")]
"""


def test_exported_files_answer_as_predict_does_without_torch(folder: Path) -> None:
    file, photo = exported(".onnx"), folder / "photos" / "0.png"
    (expected,) = predict(file, photo, top=7)
    command = [sys.executable, "-c", _WITHOUT_TORCH, str(file), str(photo)]
    done = subprocess.run(command, env=runs.environment(), capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    predicted, refused = json.loads(done.stdout)
    (row,) = predicted["predictions"]
    assert (row["label"], row["confidence"]) == (expected.label, expected.confidence)
    assert [(place["label"], place["confidence"]) for place in row["top"]] == list(expected.top)
    assert "can only predict" in refused["error"]


def test_others_need_a_token_which_is_made_and_a_closed_server_answers_nothing_more(folder: Path) -> None:
    with serve(folder / "first", compute=vitkit.Compute(backend="eager"), host="0.0.0.0", port=0) as own:
        url = own.url.replace("0.0.0.0", "127.0.0.1")
        assert own.token is not None and len(own.token) >= 32
        assert own.lines()[1] == f"token: {own.token}"
        assert own.to_dict()["models"][0]["name"] == "first"
        assert httpx.get(f"{url}/health").status_code == 200
        assert httpx.get(f"{url}/models").status_code == 401
        assert httpx.get(f"{url}/models", headers={"authorization": f"Bearer {own.token}"}).status_code == 200
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/ready")
    own.stop()


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"host": "nowhere.invalid"}, "serving.host-invalid"),
        ({"port": 70000}, "serving.port-invalid"),
        *(({"token": token}, "serving.token-invalid") for token in ("short", "x" * 513, "semicolon;semicolon;")),
        ({"queue": 0}, "text.value-outside"),
        ({"max_wait": -1}, "serving.wait-invalid"),
        ({"models": []}, "serving.model-missing"),
        ({"models": "twice"}, "serving.model-repeated"),
        ({"port": "taken"}, "serving.port-taken"),
    ],
)
def test_what_is_not_allowed_is_refused(server: Server, folder: Path, options: dict[str, Any], code: str) -> None:
    special = {"twice": [folder / "first"] * 2, "taken": int(server.url.rpartition(":")[2])}
    given = {"models": folder / "first", "port": 0, "compute": EXACT, **options}
    given = {name: special.get(value, value) if isinstance(value, str) else value for name, value in given.items()}
    with refused(code):
        serve(given.pop("models"), **given)


def test_the_page_lists_all_requests(browser: Any, server: Server) -> None:
    with watched(browser, "phone", "dark") as page:
        page.goto(f"{server.url}/")
        page.locator(".opblock").nth(6).wait_for()


VITKIT = str(Path(sys.executable).with_name("vitkit"))
BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "serving.py"
ALONE = ("--backend", "eager", "--precision", "float32")


@pytest.mark.accept
@pytest.mark.skipif("VITKIT_TEST_DATA" not in os.environ, reason="VITKIT_TEST_DATA is not set")
def test_an_image_costs_what_it_costs_predict_and_a_fifth_more(tmp_path: Path) -> None:
    subprocess.run([sys.executable, str(BENCHMARK), "--json", str(tmp_path / "row.json")], check=True, timeout=600)
    row = json.loads((tmp_path / "row.json").read_text())
    assert row["errors"] == 0
    assert float(row["ratio"]) <= 1.2, row
    assert float(row["p99_in_full_batches"]) <= 4, row
    held = [int(own) for own in row["resident_mib"].split()]
    assert max(held) <= 1.03 * held[0], row


@pytest.mark.accept
def test_a_crowd_beyond_the_queue_is_refused_and_memory_stays_flat(folder: Path) -> None:
    """Nor do random bytes, as every kind of body, make it grow."""
    content = (folder / "photos" / "1.jpg").read_bytes()
    with serving(VITKIT, f"own={folder / 'first'}", *ALONE) as program:
        held = []
        for _ in range(5):
            tally = ask_all(program.address, [posted(content)] * 4000, clients=64)
            assert tally.cut == tally.refused == 0 and tally.statuses.keys() <= {200, 503}
            held.append(resident(program.process.pid))
        assert max(held) <= 1.05 * held[0], held
        assert counted(program.url, "vitkit_images_waiting") == 0
        with httpx.Client(base_url=program.url, timeout=60) as client:
            for turn in range(900):
                kind = ("image/png", "application/json", "multipart/form-data; boundary=x")[turn % 3]
                noise = os.urandom(turn % 50 * 100 + 1)
                answer = client.post("/predict", content=noise, headers={"content-type": kind})
                assert 400 <= answer.status_code < 500, answer.text
            good = client.post("/predict", content=content, headers={"content-type": "image/jpeg"})
            assert good.status_code == 200
        assert resident(program.process.pid) <= 1.05 * held[0]


@pytest.mark.parametrize(
    ("count", "clients", "after"),
    [(300, 8, 0.3), *(pytest.param(10_000, 32, after, marks=pytest.mark.accept) for after in (0.5, 1.5, 3.0))],
)
def test_a_signal_finishes_what_was_accepted_and_takes_nothing_more(
    folder: Path, count: int, clients: int, after: float
) -> None:
    requests = [posted((folder / "photos" / f"{i % 4 * 2 + 1}.jpg").read_bytes(), f"{i}.jpg") for i in range(count)]
    with serving(warm.vitkit(), f"own={folder / 'first'}", *ALONE, "--queue", 600) as program:
        slow = _half_sent(program, requests[0])
        tallies = list[Tally]()
        crowd = threading.Thread(target=lambda: tallies.append(ask_all(program.address, requests, clients=clients)))
        crowd.start()
        time.sleep(after)
        program.process.send_signal(signal.SIGTERM)
        with pytest.raises(ConnectionRefusedError):
            for _ in range(200):  # it asks for signals five times a second
                socket.create_connection(program.address, timeout=5).close()
                time.sleep(0.05)
        slow.sendall(requests[0][-100:])
        answer = slow.recv(65536)
        slow.close()
        assert answer.startswith(b"HTTP/1.1 200 OK"), answer
        assert b"connection: close" in answer
        crowd.join()
        _, told = program.process.communicate(timeout=60)
    assert (program.process.returncode, told) == (128 + signal.SIGTERM, "stopped by SIGTERM\n")
    (tally,) = tallies
    assert tally.cut == 0  # no answer without an end
    assert tally.statuses.keys() <= {200, 503} and tally.statuses[200] >= clients
    assert tally.refused + sum(tally.statuses.values()) == count
    assert all(row["path"] == f"{number}.jpg" for number, row in tally.rows.items())


def _half_sent(program: Program, request: bytes) -> socket.socket:
    own = socket.create_connection(program.address, timeout=20)
    own.sendall(request[:-100])
    time.sleep(0.1)
    return own


def test_a_second_signal_does_not_wait_and_the_token_may_come_from_the_environment(folder: Path) -> None:
    token = "a-token-of-some-length"
    with serving(warm.vitkit(), folder / "first", *ALONE, VITKIT_TOKEN=token) as program:
        for head, status in (({}, 401), ({"authorization": f"Bearer {token}"}, 200)):
            assert httpx.get(f"{program.url}/models", headers=head).status_code == status
        request = posted(b"x" * 1000).replace(b"\r\n", f"\r\nauthorization: Bearer {token}\r\n".encode(), 1)
        own = _half_sent(program, request)
        program.process.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        assert program.process.poll() is None
        began = time.monotonic()
        code, _ = program.end(signal.SIGINT)
        assert (code, time.monotonic() - began < 5) == (130, True)
        own.close()
