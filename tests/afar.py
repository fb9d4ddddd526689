"""A web server of one folder that answers requests for parts of files, and fails on demand."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

STATUS: dict[str | None, int] = {"broken": 500, "forbidden": 403, "busy": 429}


class Site:
    """A folder on 127.0.0.1.

    Attributes:
        address: its address.
        requests: the number of requests for each file.
        fault: receives the name of a file and how often it was requested before, and returns what goes wrong: `cut`
            closes the connection within the answer, `slow` sends nothing for a second, the names in `STATUS` are
            statuses, `whole` ignores the requested range, `wrong` sends other bytes; None if nothing does.
    """

    def __init__(self, folder: Path, server: ThreadingHTTPServer) -> None:
        self.folder, self.address = folder, f"http://127.0.0.1:{server.server_address[1]}/{folder.name}"
        self.requests: Counter[str] = Counter()
        self.fault: Callable[[str, int], str | None] = lambda name, before: None
        self.lock = threading.Lock()


@contextmanager
def served(folder: Path) -> Iterator[Site]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # a body would wait 40 ms for the client's answer to the head

        def do_HEAD(self) -> None:
            self.answer(has_body=False)

        def do_GET(self) -> None:
            self.answer(has_body=True)

        def answer(self, *, has_body: bool) -> None:
            name = self.path.removeprefix(f"/{folder.name}/")
            with site.lock:
                fault = site.fault(name, site.requests[name])
                site.requests[name] += 1
            path = folder / name
            if fault in STATUS or not path.is_file():
                self.send_response(STATUS.get(fault, 404))
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            data, requested = path.read_bytes(), self.headers.get("Range")
            size, start, stop = len(data), 0, len(data) - 1
            if requested and fault != "whole":
                first, _, last = requested.removeprefix("bytes=").partition("-")
                start, stop = int(first), min(int(last or size), size - 1)
                data = data[start : stop + 1]
            if fault == "slow":
                time.sleep(1.0)
            if fault == "wrong":
                data = bytes(len(data))
            self.send_response(206 if requested and fault != "whole" else 200)
            self.send_header("Accept-Ranges", "bytes")
            self.send_header("Content-Length", str(len(data)))
            if requested and fault != "whole":
                self.send_header("Content-Range", f"bytes {start}-{stop}/{size}")
            self.end_headers()
            try:
                if has_body:
                    self.wfile.write(data[: len(data) // 2] if fault == "cut" else data)
            except ConnectionError:  # the client has not waited
                self.close_connection = True
            if fault == "cut":
                self.close_connection = True

        def log_message(self, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    site = Site(folder, server)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield site
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
