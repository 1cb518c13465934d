"""What the service manager that started a station is told (sd_notify of systemd); without one nothing is."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import MutableMapping

VARIABLE = "NOTIFY_SOCKET"
READY, STOPPING = "READY=1", "STOPPING=1"
log = logging.getLogger(__name__)


class Manager:
    """Takes the address out of the environment, so that no child process speaks for the station."""

    def __init__(self, environ: MutableMapping[str, str] = os.environ) -> None:
        self._address = environ.pop(VARIABLE, "")

    def tell(self, state: str) -> None:
        """One that does not listen is told nothing, and the station goes on."""
        if not self._address:
            return
        # A name that begins with @ is one without a file.
        address = f"\0{self._address[1:]}" if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
                sock.connect(address)
                sock.send(state.encode())
        except OSError as error:
            log.warning("the service manager was not told %s: %s", state, error.strerror)
