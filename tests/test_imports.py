"""What a short command may load: the command line must answer at once."""

from __future__ import annotations

import subprocess
import sys

import pytest

# Each of these costs more than the whole of `stn --help` may.
HEAVY = {
    "aiohttp", "anyio", "asyncio", "fastapi", "httpcore2", "httpx2", "pydantic", "pydantic_settings", "rich", "sqlite3",
    "starlette", "uvicorn", "uvloop", "wsproto", "yaml",
}  # fmt: skip

HELP = """
import sys
from station.cli import main
sys.argv = ["stn", *sys.argv[1:]]
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
print("loaded:", *sys.modules)
"""


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"]])
def test_help_loads_no_heavy_module(arguments: list[str]) -> None:
    done = subprocess.run([sys.executable, "-c", HELP, *arguments], capture_output=True, text=True, check=True)
    shown, loaded = done.stdout.rsplit("loaded:", 1)
    assert "Usage" in shown
    assert HEAVY & {name.partition(".")[0] for name in loaded.split()} == set()


def test_a_station_that_starts_loads_nothing_that_only_some_need() -> None:
    """TLS, identity tokens, metrics and NATS: each is loaded where it is first used."""
    code = "import sys, station.server.serve; print(*{m.partition('.')[0] for m in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "starlette" in loaded
    assert {"cryptography", "jwt", "mcp", "nats", "opentelemetry", "prometheus_client"} & loaded == set()


def test_the_package_itself_loads_nothing_of_others() -> None:
    code = "import sys, station; print(*{m.partition('.')[0] for m in sys.modules} - sys.stdlib_module_names)"
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    assert {name for name in done.stdout.split() if not name.startswith("_")} == {"station"}
