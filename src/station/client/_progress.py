"""A bar on standard error for work with many steps."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rich.progress import Progress


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
