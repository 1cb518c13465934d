"""Bars on standard error: for work with many steps, and for images that are pulled."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from station.core.wire import PullView


class Bar:
    """Shows how many of `total` are done; silent for `shown=False`, or `None` where standard error is not a tty."""

    def __init__(self, title: str, total: int | None, *, shown: bool | None) -> None:
        self._title, self._total = title, total
        self._shown = sys.stderr.isatty() if shown is None else shown
        self._progress: Progress | None = None

    def __enter__(self) -> Self:
        if self._shown:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            self._progress = Progress(*columns, console=Console(stderr=True), transient=True)
            self._progress.add_task(self._title, total=self._total)
            self._progress.start()
        return self

    def advance(self) -> None:
        if self._progress is not None:
            self._progress.advance(self._progress.task_ids[0])

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._progress is not None:
            self._progress.stop()


class PullBar:
    """A line for each image on its way; silent for `shown=False`, or `None` where standard error is not a tty."""

    def __init__(self, image: str | None, *, shown: bool | None) -> None:
        """`image`: the only one that is of interest; `None`: all are."""
        self.shown = sys.stderr.isatty() if shown is None else shown
        self._image = image
        self._progress: Progress | None = None
        self._lines: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        return self

    def show(self, pulls: Iterable[PullView]) -> None:
        """How far they are now. Those that are no longer among them have ended."""
        wanted = {pull.image: pull for pull in pulls if self._image in (None, pull.image)}
        if not wanted and self._progress is None:
            return
        progress = self._progress or self._begin()
        for image in list(self._lines):
            if image not in wanted:
                progress.remove_task(self._lines.pop(image))
        for image, pull in wanted.items():
            if image not in self._lines:
                self._lines[image] = progress.add_task(image, total=None, layers="")
            layers = f"{pull.layers_done} of {pull.layers} layers" if pull.layers else "waiting"
            total = pull.total_bytes or None
            progress.update(self._lines[image], completed=pull.done_bytes, total=total, layers=layers)

    def _begin(self) -> Progress:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

        name = TextColumn("pulling {task.description}", markup=False)
        layers = TextColumn("{task.fields[layers]}", markup=False)
        columns = (name, BarColumn(), DownloadColumn(), layers, TimeElapsedColumn())
        self._progress = Progress(*columns, console=Console(stderr=True), transient=True)
        self._progress.start()
        return self._progress

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._progress is not None:
            self._progress.stop()
