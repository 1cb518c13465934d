"""Random input for the pure parts of the guest, under the address and undefined-behaviour sanitizers."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "guest" / "src"
FULL = bool(os.environ.get("STN_TEST_FULL"))
SEED = int(os.environ.get("STN_TEST_SEED", "1"))
ITERATIONS = {"frames": 300, "record": 100_000, "paths": 100_000, "entries": 100_000, "ring": 100, "sha256": 10_000}
FULL_FACTOR = 30


@pytest.fixture(scope="session")
def fuzzer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The whole guest but its main(), with the driver instead: what is pure needs no other build."""
    compiler = shutil.which("gcc") or shutil.which("clang")
    if not compiler:
        pytest.skip("needs gcc or clang with their sanitizers")
    binary = tmp_path_factory.mktemp("fuzz") / "fuzz"
    sources = [Path(__file__).with_name("fuzz.c"), *(path for path in SOURCE.glob("*.c") if path.name != "main.c")]
    flags = ["-std=c11", "-D_GNU_SOURCE", "-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    subprocess.run([compiler, *flags, f"-I{SOURCE}", *map(str, sources), "-o", str(binary)], check=True)
    return binary


@pytest.mark.parametrize("target", ITERATIONS)
def test_no_input_breaks_a_promise_or_a_memory_bound(fuzzer: Path, target: str) -> None:
    count = ITERATIONS[target] * (FULL_FACTOR if FULL else 1)
    result = subprocess.run([str(fuzzer), target, str(SEED), str(count)], capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stderr[-3000:]
