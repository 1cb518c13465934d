"""A copy of the repository, with an environment whose `station` is the copy's own."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.mutants import reports
from tests.mutants.mutant import Mutant
from tests.mutants.verdict import Run

ROOT = Path(__file__).resolve().parents[2]
GUEST = Path("src/station/guest/bin") / f"stn-guest-{platform.machine()}"


class BuildError(Exception):
    """The guest does not compile; the text is the end of what the compiler says."""


def files() -> list[Path]:
    """What git has or would have: tracked files and new ones, as they are now."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, check=True,
    ).stdout  # fmt: skip
    found = (Path(os.fsdecode(name)) for name in listed.split(b"\0") if name)
    return sorted({path for path in found if (ROOT / path).is_file()})


class Tree:
    def __init__(self, place: Path) -> None:
        """Copies, makes the environment and builds the guest. Raises BuildError."""
        self.root = place / "tree"
        for path in files():
            target = self.root / path
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / path, target, follow_symlinks=False)
        self._reports = place / "reports"
        self._log = place / "log"
        self._make_environment()
        self._build()
        self._whole = place / "guest"
        shutil.copy2(self.root / GUEST, self._whole)

    @property
    def _python(self) -> Path:
        return self.root / ".venv" / "bin" / "python"

    def _make_environment(self) -> None:
        """The packages are this environment's, but for `station`: ours is told by a .pth file, which of a folder that
        is only on the path nobody reads."""
        base = getattr(sys, "_base_executable", sys.executable)
        subprocess.run([base, "-m", "venv", "--without-pip", self.root / ".venv"], check=True)
        site = next((self.root / ".venv" / "lib").glob("python*/site-packages"))
        lines = [str(self.root / "src"), sysconfig.get_path("purelib")]
        (site / "mutants.pth").write_text("\n".join(lines) + "\n", "utf-8")

    def _build(self) -> None:
        command = [sys.executable, str(self.root / "guest" / "build.py"), str(self.root / GUEST.parent)]
        done = subprocess.run(
            [*command, "--arch", platform.machine()], env=self._environ(), capture_output=True, text=True
        )
        if done.returncode != 0:
            raise BuildError(done.stderr.strip()[-600:])

    @contextmanager
    def without(self, mutant: Mutant) -> Iterator[None]:
        """The defence is gone within. Raises StaleError, BuildError."""
        changed = mutant.changed(self.root)
        before = {file: ((self.root / file).read_text("utf-8"), (self.root / file).stat()) for file in changed}
        try:
            for file, text in changed.items():
                (self.root / file).write_text(text, "utf-8")
                _forget_bytecode(self.root / file)
            if mutant.compiles:
                self._build()
            yield
        finally:
            for file, (text, facts) in before.items():
                (self.root / file).write_text(text, "utf-8")
                os.utime(self.root / file, ns=(facts.st_atime_ns, facts.st_mtime_ns))
                _forget_bytecode(self.root / file)
            # Newer than the sources, or tests that look at the time would build it once more. By a rename: a guest may
            # still run.
            fresh = self._whole.with_suffix(".fresh")
            shutil.copy(self._whole, fresh)
            os.replace(fresh, self.root / GUEST)

    def test(self, tests: Sequence[str], *, seconds: float) -> Run:
        """Runs these tests; ended from outside after `seconds`. Nothing that they start is left."""
        self._reports.unlink(missing_ok=True)
        environ = self._environ() | {reports.FILE: str(self._reports), reports.WANTED: "\n".join(tests)}
        paths = list(dict.fromkeys(test.partition("::")[0] for test in tests))
        command = [
            sys.executable,
            "-m",
            "tests.mutants.keeper",
            str(self._python),
            "-m",
            "pytest",
            "-q",
            "-p",
            reports.__name__,
        ]
        command += ["-p", "no:cacheprovider", *paths]
        ended = True
        with open(self._log, "wb") as log:
            process = subprocess.Popen(
                command, cwd=self.root, env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
            try:
                process.wait(seconds)
            except subprocess.TimeoutExpired:
                ended = False
            finally:
                process.terminate()
                process.wait()
        return Run.read(self._reports, ended=ended)

    def said(self) -> str:
        """The end of what pytest said in the last run."""
        return self._log.read_text("utf-8", "replace")[-3000:]

    def _environ(self) -> dict[str, str]:
        return {
            # What tests compile or keep is found where the repository keeps it.
            "ZIG_GLOBAL_CACHE_DIR": os.path.join(sys.prefix, "zig-cache"),
            "STN_TEST_CACHE": str(ROOT / ".images"),
            **_passed_on(os.environ),
        }


def _passed_on(environ: Mapping[str, str]) -> dict[str, str]:
    """Nothing of the caller's own Station; not the full tier: its bounds are for a night, not for each mutant."""
    kept = ("STN_TEST_CACHE", "STN_TEST_ENGINE")
    return {key: value for key, value in environ.items() if not key.startswith("STN_") or key in kept}


def _forget_bytecode(source: Path) -> None:
    for compiled in (source.parent / "__pycache__").glob(f"{source.stem}.*.pyc"):
        compiled.unlink()


@contextmanager
def trees(count: int) -> Iterator[list[Tree]]:
    """So many copies, in a folder that everybody may walk through: some tests become another user."""
    with tempfile.TemporaryDirectory(prefix="stn-mutants-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)
        made = []
        for number in range(count):
            (Path(folder) / str(number)).mkdir()
            made.append(Tree(Path(folder) / str(number)))
        yield made
