"""Compiles the guest, and the program of `stn doctor --attack`, while the package is built, so that nobody who installs
Station needs a toolchain."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ARCHES = ("x86_64", "aarch64")


class GuestBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """Puts ``guest/bin/stn-guest-<arch>`` and ``_attacks/stn-attack-<arch>`` into ``src/station/`` before the wheel is
    packed."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return  # a source distribution carries the C source; its wheel is built from it
        root = Path(self.root)
        recipe = root / "guest" / "build.py"
        if not recipe.exists():
            if version == "editable":
                self.app.display_warning(f"no guest is built: {recipe} does not exist")
                return
            raise FileNotFoundError(f"cannot build the guest: {recipe} is missing")
        package = root / "src" / "station"
        build = _load(recipe)
        made = [*build.build(package / "guest" / "bin", ARCHES), *build.build_attacks(package / "_attacks", ARCHES)]
        # All are static programs for Linux, chosen at run time: the wheel stays `py3-none-any`.
        missing = [path.name for path in made if not os.access(path, os.X_OK)]
        if missing or len(made) != 2 * len(ARCHES):
            raise RuntimeError(f"guest/build.py made no program: {', '.join(missing) or 'some are missing'}")


def _load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location("station_guest_build", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up here
    spec.loader.exec_module(module)
    return module
