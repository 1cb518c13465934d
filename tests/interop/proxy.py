"""Puts the token on every request, for a client that has no option for one. All else passes as it is, Host included."""

from __future__ import annotations

import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def adding(token: str, port: int) -> Iterator[int]:
    """The port of a proxy before `port` of this machine. Each connection carries one request."""

    class OneRequest(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            head = []
            while (line := self.rfile.readline()).strip():
                head.append(line)
            if not head:
                return
            kept = [line for line in head if not line.lower().startswith(b"connection:")]
            kept += [f"Authorization: Bearer {token}\r\n".encode(), b"Connection: close\r\n", b"\r\n"]
            with socket.create_connection(("127.0.0.1", port)) as upstream:
                upstream.sendall(b"".join(kept))
                body = threading.Thread(target=self._send_body, args=[upstream])
                body.start()
                with suppress(OSError):  # a client may leave at any time
                    while data := upstream.recv(65536):
                        self.wfile.write(data)
                for end in (self.connection, upstream):
                    with suppress(OSError):
                        end.shutdown(socket.SHUT_RDWR)
                body.join()

        def _send_body(self, upstream: socket.socket) -> None:
            with suppress(OSError):
                while data := self.rfile.read1(65536):
                    upstream.sendall(data)
                upstream.shutdown(socket.SHUT_RDWR)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), OneRequest) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()
