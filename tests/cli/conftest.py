from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.client.conftest import ended, real

__all__ = ["Stn", "ended", "real", "stn"]

Stn = Callable[..., "subprocess.CompletedProcess[bytes]"]


@pytest.fixture
def stn() -> Stn:
    """Runs `stn` with these words."""

    def run(*words: str, **options: object) -> subprocess.CompletedProcess[bytes]:
        command = [sys.executable, "-m", "station", *words]
        return subprocess.run(command, capture_output=True, timeout=50, env=dict(os.environ), **options)  # type: ignore[call-overload, no-any-return]

    return run
