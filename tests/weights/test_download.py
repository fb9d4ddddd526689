"""Downloads against servers of every temper, on this machine: nothing leaves it."""

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import huggingface_hub
import numpy as np
import pytest
from huggingface_hub import snapshot_download

import runs
from refusals import refused
from vitkit.system import reporting_to
from vitkit.weights import CATALOG, cache_path, download, fetch, fetch_url
from vitkit.weights.download import fetch_hub

SOURCE = Path(__file__).parents[2] / "src"
BYTES = np.random.default_rng(0).bytes(1_500_000)
OTHER = np.random.default_rng(1).bytes(1_500_000)


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@dataclass
class Server:
    """One file under every path, and how its server behaves."""

    body: bytes = BYTES
    ranges: bool = True
    breaks: list[int] = field(default_factory=list)  # after how many bytes each answer breaks off
    statuses: list[int] = field(default_factory=list)  # errors before the first good answer
    length: bool = True
    redirect: str | None = None
    before: Callable[[], None] | None = None
    asked: list[dict[str, str]] = field(default_factory=list)
    url: str = ""

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        self.asked.append({name.lower(): value for name, value in request.headers.items()})
        if self.before:
            self.before()
        if self.redirect:
            self._head(request, 302, {"Location": self.redirect})
        elif self.statuses:
            self._head(request, self.statuses.pop(0), {"Content-Length": "0"})
        else:
            self._send(request)

    def _send(self, request: BaseHTTPRequestHandler) -> None:
        start, wanted = 0, request.headers.get("Range")
        status, headers, end = 200, dict[str, str](), len(self.body)
        if wanted and self.ranges:
            start = int(wanted.removeprefix("bytes=").rstrip("-"))
            if start >= len(self.body):
                self._head(request, 416, {"Content-Range": f"bytes */{len(self.body)}", "Content-Length": "0"})
                return
            status, headers = 206, headers | {"Content-Range": f"bytes {start}-{end - 1}/{len(self.body)}"}
        body = self.body[start:end]
        if self.length:
            headers["Content-Length"] = str(len(body))
        self._head(request, status, headers)
        request.wfile.write(body[: self.breaks.pop(0)] if self.breaks else body)

    def _head(self, request: BaseHTTPRequestHandler, status: int, headers: dict[str, str]) -> None:
        request.send_response(status)
        for name, value in headers.items():
            request.send_header(name, value)
        request.end_headers()


@pytest.fixture
def serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Server]]:
    """`serve(ranges=False)` is a server like that; the cache is empty and the network is allowed."""
    monkeypatch.setenv("VITKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    for name in ("VITKIT_OFFLINE", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    running: list[ThreadingHTTPServer] = []

    def start(**temper: Any) -> Server:
        server = Server(**temper)

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1" if server.length else "HTTP/1.0"

            def do_GET(self) -> None:
                self.close_connection = True
                server.answer(self)

            def log_message(self, *arguments: object) -> None:
                pass

        http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True).start()
        running.append(http)
        server.url = f"http://127.0.0.1:{http.server_address[1]}/models/weights.npz"
        return server

    yield start
    for http in running:
        http.shutdown()
        http.server_close()


def leftovers(url: str) -> list[str]:
    """What lies beside the file and its lock."""
    final = cache_path(url)
    return sorted(path.name for path in final.parent.glob("*") if path != final and path.suffix != ".lock")


def part_of(url: str) -> Path:
    return cache_path(url).with_name("weights.npz.part")


def interrupt(server: Server, after: int) -> None:
    """A download of `server`'s file that somebody stops with Ctrl-C."""

    def stop(what: str, done: int, total: int) -> None:
        if done >= after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), reporting_to(stop):
        fetch_url(server.url)
    assert not cache_path(server.url).exists()


def test_a_file_is_fetched_whole_and_told_of(serve: Callable[..., Server]) -> None:
    server, told = serve(), []
    with reporting_to(lambda *report: told.append(report)):
        path = fetch_url(server.url)
    assert path.read_bytes() == BYTES and path == cache_path(server.url)
    assert leftovers(server.url) == []
    assert told[0] == ("downloading weights.npz", 0, len(BYTES))
    assert told[-1] == ("downloading weights.npz", len(BYTES), len(BYTES))
    assert [done for _, done, _ in told] == sorted(done for _, done, _ in told)
    assert server.asked[0]["user-agent"].startswith("vitkit/")
    assert "range" not in server.asked[0]


def test_a_file_in_the_cache_needs_no_server_and_offline_its_place_is_named(
    serve: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve()
    for switch in ("VITKIT_OFFLINE", "HF_HUB_OFFLINE"):
        monkeypatch.setenv(switch, "1")
        with refused("weights.downloads-forbidden", server.url, f"{switch}=1", str(cache_path(server.url))):
            fetch_url(server.url)
        monkeypatch.setenv(switch, "0")
    assert server.asked == []
    first = fetch_url(server.url)
    monkeypatch.setenv("VITKIT_OFFLINE", "1")
    first.write_bytes(b"mine")
    assert fetch_url(server.url).read_bytes() == b"mine"
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    "url",
    [
        *("http://example.org/x.npz", "file:///etc/passwd", "https://example.org/folder/", "https://[::1/x.npz"),
        *("https://example.org/a/../../x.npz", "https://example.org/a b.npz", "https://example.org/a\nb.npz"),
        *("https://user:secret@example.org/x.npz", "http://localhost.example.org/x.npz", "x.npz"),
    ],
)
def test_addresses_that_are_not_asked(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITKIT_CACHE", str(tmp_path))
    with refused("weights.address-invalid"):
        fetch_url(url)
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_download_goes_on_where_it_stopped(serve: Callable[..., Server]) -> None:
    server = serve()
    interrupt(server, after=600_000)
    kept = part_of(server.url).stat().st_size
    assert 600_000 <= kept < len(BYTES)
    told: list[int] = []
    with reporting_to(lambda what, done, total: told.append(done)):
        assert fetch_url(server.url).read_bytes() == BYTES
    assert server.asked[1]["range"] == f"bytes={kept}-"
    assert told[0] == kept and told[-1] == len(BYTES)
    assert leftovers(server.url) == []


def test_a_connection_that_breaks_is_taken_up_by_the_next_call(serve: Callable[..., Server]) -> None:
    server = serve(breaks=[100_000] * 2)
    for kept in (100_000, 200_000):
        with refused("weights.download-failed", server.url, f"{kept} bytes are kept"):
            fetch_url(server.url)
    assert not cache_path(server.url).exists()
    assert fetch_url(server.url, digest(BYTES)).read_bytes() == BYTES
    assert [asked.get("range") for asked in server.asked] == [None, "bytes=100000-", "bytes=200000-"]


def test_a_server_without_ranges_sends_the_whole_file_again(serve: Callable[..., Server]) -> None:
    server = serve(ranges=False, breaks=[700_000])
    with refused("weights.download-failed", server.url, "700000 bytes"):
        fetch_url(server.url)
    assert fetch_url(server.url).read_bytes() == BYTES


def test_a_file_that_shrank_between_attempts_is_begun_anew(serve: Callable[..., Server]) -> None:
    server = serve()
    interrupt(server, after=600_000)
    server.body = OTHER[:1000]
    with refused("weights.download-failed", "416"):
        fetch_url(server.url)
    assert fetch_url(server.url).read_bytes() == OTHER[:1000]


@pytest.mark.parametrize("expected", [digest(BYTES)[:8], digest(BYTES).upper()])
def test_a_file_of_a_wrong_checksum_is_deleted(serve: Callable[..., Server], expected: str) -> None:
    server = serve(body=OTHER)
    entry = replace(CATALOG["deit_tiny_patch16_224.fb_in1k"], url=server.url, sha256=expected)
    with refused("weights.download-failed", digest(OTHER)[:8], expected[:8].lower()):
        fetch(entry)
    assert leftovers(server.url) == [] and not cache_path(server.url).exists()
    server.body = BYTES
    assert fetch(entry).read_bytes() == BYTES


@pytest.mark.parametrize("status", [404, 500])
def test_an_error_of_the_server_is_said(serve: Callable[..., Server], status: int) -> None:
    server = serve(statuses=[status])
    with refused("weights.download-failed", f"{status}"):
        fetch_url(server.url)
    assert leftovers(server.url) == []
    assert fetch_url(server.url).read_bytes() == BYTES


@pytest.mark.parametrize("kind", ["refuses", "silent", "no length"])
def test_what_is_no_server_of_files_is_refused(
    serve: Callable[..., Server], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    done = threading.Event()
    server = serve(
        length=kind != "no length",
        before=(lambda: done.wait(10) and None) if kind == "silent" else None,
    )
    monkeypatch.setattr(download, "_TIMEOUT", 0.05 if kind == "silent" else 30)
    url = "http://127.0.0.1:9/x.npz" if kind == "refuses" else server.url
    with refused("weights.download-failed", url):
        fetch_url(url)
    done.set()
    assert not cache_path(url).exists()


def test_redirects_are_followed_and_keep_the_range_but_not_to_what_would_not_be_asked(
    serve: Callable[..., Server],
) -> None:
    real = serve()
    door = serve(redirect=real.url)
    interrupt(door, after=600_000)
    assert fetch_url(door.url).read_bytes() == BYTES
    assert real.asked[1]["range"] == "bytes=786432-"  # three blocks
    assert cache_path(door.url).exists() and not cache_path(real.url).exists()
    for target in ("http://example.org/x.npz", "file:///etc/passwd"):
        server = serve(redirect=target)
        with refused("weights.download-failed", target):
            fetch_url(server.url)
        assert len(server.asked) == 1


def test_no_cache_and_a_full_disk_are_said(
    serve: Callable[..., Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve()
    with runs.files_of_at_most(500_000), refused("weights.cache-unwritable", str(cache_path(server.url))):
        fetch_url(server.url)
    assert not cache_path(server.url).exists()
    assert len(server.asked) == 1, "not taken for a bad line"
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("VITKIT_CACHE", str(tmp_path / "file"))
    with refused("weights.cache-unwritable", "VITKIT_CACHE"):
        fetch_url(server.url)


def test_two_threads_at_once_fetch_it_once(serve: Callable[..., Server]) -> None:
    waiting = threading.Event()
    server = serve(before=lambda: waiting.wait(10) and None)
    told: list[str] = []

    def watch(what: str, done: int, total: int) -> None:
        told.append(what)
        if what.startswith("waiting"):
            waiting.set()

    def fetch() -> None:
        with reporting_to(watch):
            fetch_url(server.url, digest(BYTES))

    threads = [threading.Thread(target=fetch) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert cache_path(server.url).read_bytes() == BYTES
    assert len(server.asked) == 1
    assert "waiting for another download of weights.npz" in told


def test_a_killed_process_holds_no_other(serve: Callable[..., Server]) -> None:
    server = serve()
    stuck = threading.Event()
    server.before = lambda: len(server.asked) == 1 and stuck.wait(20) and None
    code = "import sys; from vitkit.weights.download import fetch_url; fetch_url(sys.argv[1])"
    environment = os.environ | {"PYTHONPATH": str(SOURCE)}
    first = subprocess.Popen([sys.executable, "-c", code, server.url], env=environment)
    while not server.asked:
        threading.Event().wait(0.01)

    def kill(what: str, done: int, total: int) -> None:
        if what.startswith("waiting"):
            first.kill()

    with reporting_to(kill):
        assert fetch_url(server.url).read_bytes() == BYTES
    stuck.set()
    first.wait(20)
    assert len(server.asked) == 2


COMMIT = "0123456789abcdef0123456789abcdef01234567"
DESCRIBED = ("config.json", "preprocessor_config.json")
EXTRAS = (*DESCRIBED, "README.md", "tf_model.h5", "onnx/model.safetensors", "run.py", "training_args.bin")
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json")
REPOSITORIES: dict[str, tuple[str, ...]] = {
    "a/whole": (*EXTRAS, "model.safetensors", "pytorch_model.bin"),
    "a/shards": (*EXTRAS, *SHARDS),
    "a/pickle": (*EXTRAS, "pytorch_model.bin"),
    "a/arrays": (*EXTRAS, "model.npz"),
    "a/nothing": EXTRAS,
}


class FakeHub(BaseHTTPRequestHandler):
    """As much of the hub's protocol as a snapshot needs."""

    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        repository = "/".join(path.removeprefix("/api/models").split("/")[1:3])
        files = {name: BYTES if name == "model.safetensors" else b"{}" for name in REPOSITORIES.get(repository, ())}
        if repository == "gated/model":
            self.send(403, b"{}", {"X-Error-Code": "GatedRepo", "X-Error-Message": "gated"})
        elif not files:
            self.send(404, b"{}", {"X-Error-Code": "RepoNotFound", "X-Error-Message": "none"})
        elif "/tree/" in path:
            told = [{"type": "file", "path": name, "size": len(own), "oid": oid(name)} for name, own in files.items()]
            self.send(200, json.dumps(told).encode())
        elif path.startswith("/api/"):
            siblings = [{"rfilename": name} for name in files]
            about = {"id": repository, "modelId": repository, "sha": COMMIT, "siblings": siblings, "private": False}
            self.send(200, json.dumps(about | {"tags": [], "downloads": 0, "likes": 0}).encode())
        else:
            name = path.rpartition("/")[2]
            self.send(200, files[name], {"X-Repo-Commit": COMMIT, "ETag": f'"{oid(name)}"'})

    def send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        pass


def oid(name: str) -> str:
    return hashlib.sha1(name.encode()).hexdigest()


def test_a_repository_of_the_hub_is_a_folder_that_is_then_there_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in ("VITKIT_OFFLINE", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    http = ThreadingHTTPServer(("127.0.0.1", 0), FakeHub)
    threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True).start()
    hub = partial(snapshot_download, cache_dir=tmp_path, token=False)

    def be_at(port: int) -> None:
        monkeypatch.setattr("huggingface_hub.snapshot_download", partial(hub, endpoint=f"http://127.0.0.1:{port}"))

    be_at(http.server_address[1])
    told: list[tuple[str, int, int]] = []
    with reporting_to(lambda *report: told.append(report)):
        whole, shards, pickle, arrays = map(fetch_hub, ("a/whole", "a/shards", "a/pickle", "a/arrays"))
    assert ("downloading a/whole", len(BYTES) + 4, len(BYTES) + 4) in told
    assert (whole / "model.safetensors").read_bytes() == BYTES
    for folder, files in ((whole, ["model.safetensors"]), (shards, SHARDS), (pickle, ["pytorch_model.bin"])):
        assert {path.name for path in folder.iterdir()} == {*DESCRIBED, *files}
    assert (arrays / "model.npz").is_file()
    for name, code in (("a/nothing", "tensors-absent"), ("no/thing", "repository-unknown")):
        with refused(f"weights.{code}", name):
            fetch_hub(name)
    with refused("weights.repository-gated", "https://huggingface.co/gated/model"):
        fetch_hub("gated/model")
    http.shutdown()
    http.server_close()
    be_at(9)
    assert fetch_hub("a/whole") == whole
    with refused("weights.download-failed", "a/b"):
        fetch_hub("a/b")
    monkeypatch.setenv("VITKIT_OFFLINE", "1")
    assert fetch_hub("a/whole") == whole
    for name in ("a/nothing", "c/d"):
        with refused("weights.downloads-forbidden", name):
            fetch_hub(name)
    assert capfd.readouterr().err == ""
