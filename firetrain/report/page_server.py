"""Serve a page on this machine; it is rebuilt on every request."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from firetrain.errors import FiretrainError

_HOST = "127.0.0.1"


def serve(page: Callable[[], str], show: Callable[[str], object]) -> None:
    """Serve the page until Ctrl-C, on a port that the system chooses; `show` is called with the address.

    Requests must have this machine in the Host header; this prevents DNS rebinding.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.headers.get("Host", "").partition(":")[0] not in (_HOST, "localhost"):
                self.send_error(403)
            elif self.path != "/":
                self.send_error(404)
            else:
                self._answer()

        def _answer(self) -> None:
            try:
                text, status = page(), 200
            except FiretrainError as error:
                text, status = f"firetrain: {error}\n", 503
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", f"text/{'html' if status == 200 else 'plain'}; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer((_HOST, 0), Handler) as server, suppress(KeyboardInterrupt):
        show(f"http://{_HOST}:{server.server_address[1]}/")
        server.serve_forever()
