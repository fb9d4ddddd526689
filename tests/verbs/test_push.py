"""`vitkit push`: what is published, what the card says, and what a hub receives."""

import base64
import hashlib
import json
import os
import re
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

import pytest
import yaml

import runs
import vitkit
import warm
from hearing import heard
from once import once
from refusals import refused
from vitkit.evaluation import headline_of
from vitkit.evaluation.registry import read_figures
from vitkit.training import train

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(scope="module")
def run() -> Path:
    def make(root: Path) -> None:
        data = runs.photos(root / "photos", images=8)
        train(runs.quick(data, epochs=1, split=(0.4, 0.3, 0.3)), root / "runs" / "flowers_1")

    return once("jane-doe", make) / "runs" / "flowers_1"


def test_a_dry_run_writes_what_would_be_published(run: Path, tmp_path: Path) -> None:
    notes: list[str] = []
    with heard(notes.append):
        result = vitkit.push(run, "hf:me/flowers", dry_run=tmp_path / "out")
    files = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert files.keys() == result.files.keys() == {"README.md", "model.json", "model.safetensors", "trust.safetensors"}
    secrets = (b"jane-doe", str(Path.home()).encode())
    assert not [name for name, content in files.items() if any(secret in content for secret in secrets)]
    assert result.url is None and "nothing was uploaded" in result.lines()[0]
    assert any("--with-record" in line for line in notes) and any("--licence" in line for line in notes)
    ours, theirs = vitkit.load(run), vitkit.load(tmp_path / "out")
    image = next((run.parents[1] / "photos").rglob("*.png"))
    assert next(ours.predict(image)).ranking == next(theirs.predict(image)).ranking
    assert theirs.pictures is None and theirs.trust == ours.trust
    with refused("verbs.out-exists"):
        vitkit.push(run, "hf:me/flowers", dry_run=tmp_path / "out")


def test_the_card_has_the_figures_of_the_run_and_the_fields_of_the_hub(run: Path, tmp_path: Path) -> None:
    vitkit.push(run, "me/flowers", dry_run=tmp_path / "out", licence="MIT", with_record=True)
    _, head, card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8").split("---\n", 2)
    fields = yaml.safe_load(head)
    assert (fields["license"], fields["library_name"], fields["pipeline_tag"]) == (
        "mit", "vitkit", "image-classification",
    )  # fmt: skip
    figures = read_figures(run / "evaluation.json")
    low, high = figures["intervals_95"]["accuracy"]
    assert f"{100 * headline_of(figures).value:.1f} % (95 % interval {100 * low:.1f} to {100 * high:.1f} %)" in card
    for name in ("blue", "green", "red"):
        assert f"- {name}\n" in card
    for limit in figures["unknown"]["limits"]:
        assert f"- {limit['kind']}: {100 * limit['share']:.0f} %" in card
    assert 'vitkit.load("hf:me/flowers")' in card and "vitkit predict hf:me/flowers PHOTOS" in card
    assert "--to timm" in card and "MIT" in card
    assert vitkit.load(tmp_path / "out").pictures == vitkit.load(run).pictures
    commands = re.findall(r"vitkit convert hf:me/flowers (\S+) --to (\w+)", card)
    assert {to for _, to in commands} == {"timm", "hf"}
    for name, to in commands:
        assert vitkit.convert(tmp_path / "out", tmp_path / name, to=to).destination.exists()


def test_what_names_no_repository_is_refused_and_where_downloads_are_forbidden_all(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("flowers", "hf:me", "me/flowers/1", "hf:../flowers"):
        with refused("verbs.repository-invalid", "hf:OWNER/NAME"):
            vitkit.push(run, name, dry_run=tmp_path / "out")
    assert not (tmp_path / "out").exists()
    monkeypatch.setenv("VITKIT_OFFLINE", "1")
    with refused("verbs.upload-forbidden", "VITKIT_OFFLINE=1"):
        vitkit.push(run, "hf:me/flowers")


class Hub(BaseHTTPRequestHandler):
    """As much of the hub's protocol as a commit and a snapshot need, for the repositories of `me`."""

    files: ClassVar[dict[str, bytes]] = {}
    created: ClassVar[list[dict[str, Any]]] = []
    protocol_version = "HTTP/1.1"

    @property
    def address(self) -> str:
        return f"http://{self.headers['Host']}"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        path = urlsplit(self.path).path
        if self.headers.get("Authorization") != "Bearer hf_right":
            self.send(401, {"error": "Invalid credentials"})
        elif path == "/api/repos/create":
            self.created.append(json.loads(body))
            self.send(200, {"url": f"{self.address}/me/flowers"})
        elif path == "/api/validate-yaml":
            self.send(200, {"errors": [], "warnings": []})
        elif path.endswith("/preupload/main"):
            asked = json.loads(body)["files"]
            rows = [{"path": row["path"], "uploadMode": "regular", "shouldIgnore": False} for row in asked]
            self.send(200, {"files": rows})
        elif path == "/api/models/me/flowers/commit/main":
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    self.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            self.send(
                200, {"commitUrl": f"{self.address}/me/flowers/commit/{COMMIT}", "commitOid": COMMIT, "success": True}
            )
        else:
            self.send(404, {"error": path})

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        if "/tree/" in path:
            rows = [(name, len(body), hashlib.sha1(body).hexdigest()) for name, body in self.files.items()]
            self.send(200, [{"type": "file", "path": name, "size": size, "oid": oid} for name, size, oid in rows])
        elif path.startswith("/api/"):
            siblings = [{"rfilename": name} for name in self.files]
            about = {"id": "me/flowers", "sha": COMMIT, "siblings": siblings, "private": False, "tags": []}
            self.send(200, about | {"modelId": "me/flowers", "downloads": 0, "likes": 0})
        else:
            body = self.files[path.rpartition("/")[2]]
            self.send(200, body, {"X-Repo-Commit": COMMIT, "ETag": f'"{hashlib.sha1(body).hexdigest()}"'})

    def send(self, status: int, content: Any, headers: dict[str, str] | None = None) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of a process for which a server of this test is the hub."""
    Hub.files.clear()
    Hub.created.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "VITKIT_"))}
    address = f"http://127.0.0.1:{server.server_address[1]}"
    kept |= {"HF_HOME": str(tmp_path / "hf"), "HF_ENDPOINT": address, "HF_HUB_DISABLE_XET": "1"}
    yield kept | {"HF_HUB_DISABLE_TELEMETRY": "1", "no_proxy": "127.0.0.1"}
    server.shutdown()
    server.server_close()


def vitkit_command(environment: dict[str, str], *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [warm.vitkit(), *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


def test_a_model_is_published_and_predicts_from_the_hub(run: Path, hub: dict[str, str], tmp_path: Path) -> None:
    done = vitkit_command(hub | {"HF_TOKEN": "hf_right"}, "push", run, "hf:me/flowers", "--private")
    assert done.returncode == 0, done.stderr
    assert COMMIT in done.stdout and "vitkit predict hf:me/flowers PHOTOS" in done.stdout
    assert Hub.created[0]["name"] == "flowers" and "private" in {Hub.created[0].get("visibility"), *Hub.created[0]}
    assert Hub.files.keys() == {"README.md", "model.json", "model.safetensors", "trust.safetensors"}
    image = next((run.parents[1] / "photos").rglob("*.png"))
    predicted = vitkit_command(hub, "predict", "hf:me/flowers", image, "--json")
    assert predicted.returncode == 0, predicted.stderr
    expected = next(vitkit.load(run).predict(image))
    row = json.loads(predicted.stdout)
    assert row["label"] == expected.label and row["confidence"] == pytest.approx(expected.confidence, abs=1e-2)
    assert "familiar" in row
