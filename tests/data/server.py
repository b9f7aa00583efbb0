"""A web server on this machine that serves bytes, knows ranges, and can be told to misbehave."""

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Site:
    files: dict[str, bytes]
    """By path, with the leading slash."""
    url: str = ""
    ranges: bool = True
    """Whether it can send a file from the middle on."""
    cuts: int = 0
    """How many answers still end half-way."""
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    """Path and range of each request."""


@contextlib.contextmanager
def serving(site: Site) -> Iterator[Site]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = self.headers.get("Range")
            site.asked.append((self.path, wanted))
            if self.path not in site.files:
                return self.send_error(404)
            contents = site.files[self.path]
            start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and site.ranges else 0
            if start >= len(contents) > 0 and start:
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(contents)}")
                self.send_header("Content-Length", "0")
                return self.end_headers()
            self.send_response(206 if start else 200)
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(contents) - 1}/{len(contents)}")
            self.send_header("Content-Length", str(len(contents) - start))
            self.end_headers()
            if site.cuts:
                site.cuts -= 1
                self.wfile.write(contents[start : (start + len(contents)) // 2])
            else:
                self.wfile.write(contents[start:])

        def log_message(self, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        site.url = f"http://127.0.0.1:{server.server_address[1]}"
        try:
            yield site
        finally:
            server.shutdown()
            thread.join()
