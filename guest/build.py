"""Builds the guest, and the program of `stn doctor --attack`: static, for each machine, with the C compiler that the
`ziglang` wheel brings."""

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
ATTACKS = Path(__file__).resolve().parents[1] / "tests" / "attacks" / "programs"
WARNINGS = ("-Wall", "-Wextra", "-Werror")
# The stack protector costs 4 KB: what guards a hostile box has it.
OPTIMISED = (
    "-Os", "-s", "-fstack-protector-strong", "-fomit-frame-pointer", "-ffunction-sections", "-Wl,--gc-sections",
)  # fmt: skip
PLAIN = ("-Os", "-s")
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
    flags = SANITIZED if sanitize else OPTIMISED
    return [_build_one(out_dir / f"stn-guest-{arch}", arch, SOURCE, flags) for arch in arches]


def build_attacks(out_dir: Path, arches: Sequence[str] = ARCHES) -> list[Path]:
    """Writes `stn-attack-ARCH` for each of `arches` into `out_dir`, as `build` does: what the attack tests run too.

    :raises subprocess.CalledProcessError: the compiler has refused; its words are on stderr.
    """
    out_dir = out_dir.resolve()
    out_dir.mkdir(parents=True, exist_ok=True)
    return [_build_one(out_dir / f"stn-attack-{arch}", arch, ATTACKS, PLAIN) for arch in arches]


def _build_one(target: Path, arch: str, source: Path, flags: Sequence[str]) -> Path:
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".build-") as scratch:
        binary = Path(scratch) / target.name
        command = [sys.executable, "-m", "ziglang", "cc", "-target", f"{arch}-linux-musl", "-static", "-std=c11"]
        command += ["-D_GNU_SOURCE", *WARNINGS, *flags]
        command += [str(path) for path in sorted(source.glob("*.c"))]
        subprocess.run([*command, "-o", str(binary)], check=True, cwd=source, env=compiler_environment())
        binary.chmod(0o755)
        # A rename, so that whoever starts it meanwhile gets the old one or the new one.
        os.replace(binary, target)
    return target


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--arch", choices=ARCHES, action="append")
    parser.add_argument("--sanitize", action="store_true")
    parser.add_argument("--attacks", action="store_true", help="the program of `stn doctor --attack` instead")
    options = parser.parse_args()
    arches = options.arch or ARCHES
    made = (
        build_attacks(options.out, arches) if options.attacks else build(options.out, arches, sanitize=options.sanitize)
    )
    print(*made, sep="\n")


if __name__ == "__main__":
    main()
