"""A page on this machine, made anew for every look at it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from firetrain.errors import FiretrainError

_HOST = "127.0.0.1"


def serve(page: Callable[[], str], tell: Callable[[str], object]) -> None:
    """Until Ctrl-C, on a port that the system chooses; `tell` gets the address.

    Only requests for this machine by name are answered: another site's script that points its own name here gets nothing.
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
        tell(f"http://{_HOST}:{server.server_address[1]}/")
        server.serve_forever()
