"""Builds the guest: static, for each machine, with the C compiler that the `ziglang` wheel brings."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ARCHES = ("x86_64", "aarch64")
SOURCE = Path(__file__).resolve().parent / "src"
WARNINGS = ("-Wall", "-Wextra", "-Werror")
# The stack protector costs 4 KB: what guards a hostile box has it.
OPTIMISED = (
    "-Os", "-s", "-fstack-protector-strong", "-fomit-frame-pointer", "-ffunction-sections", "-Wl,--gc-sections",
)  # fmt: skip
# Trapping: a static program of musl has no sanitizer runtime, and PID 1 nobody to report to.
SANITIZED = ("-O1", "-g", "-fsanitize=undefined", "-fsanitize-trap=undefined")


def compiler_environment() -> dict[str, str]:
    """The compiler's cache lies beside the compiler, where that is ours to write: warm from the first build on, which
    takes half a minute, and nothing of it in the home directory. A variable that is set goes first."""
    ours = {"ZIG_GLOBAL_CACHE_DIR": os.path.join(sys.prefix, "zig-cache")} if os.access(sys.prefix, os.W_OK) else {}
    return {**ours, **os.environ}


def build(out_dir: Path, arches: Sequence[str] = ARCHES, *, sanitize: bool = False) -> list[Path]:
    """Writes `stn-guest-ARCH` for each of `arches` into `out_dir`, each whole or not at all.

    :raises subprocess.CalledProcessError: the compiler has refused; its words are on stderr.
    """
    out_dir = out_dir.resolve()  # the compiler runs in the folder of the sources
    out_dir.mkdir(parents=True, exist_ok=True)
    return [_build_one(out_dir, arch, sanitize) for arch in arches]


def _build_one(out_dir: Path, arch: str, sanitize: bool) -> Path:
    target = out_dir / f"stn-guest-{arch}"
    with tempfile.TemporaryDirectory(dir=out_dir, prefix=".build-") as scratch:
        binary = Path(scratch) / target.name
        command = [sys.executable, "-m", "ziglang", "cc", "-target", f"{arch}-linux-musl", "-static", "-std=c11"]
        command += ["-D_GNU_SOURCE", *WARNINGS, *(SANITIZED if sanitize else OPTIMISED)]
        command += [str(source) for source in sorted(SOURCE.glob("*.c"))]
        subprocess.run([*command, "-o", str(binary)], check=True, cwd=SOURCE, env=compiler_environment())
        binary.chmod(0o755)
        # A rename, so that whoever starts the guest meanwhile gets the old one or the new one.
        os.replace(binary, target)
    return target


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--arch", choices=ARCHES, action="append")
    parser.add_argument("--sanitize", action="store_true")
    options = parser.parse_args()
    for path in build(options.out, options.arch or ARCHES, sanitize=options.sanitize):
        print(path)


if __name__ == "__main__":
    main()
