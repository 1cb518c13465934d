"""The operations of a station's upkeep."""

from __future__ import annotations

from station.core.upkeep import PruneView, UsageView
from station.core.wire import API

from . import parameters as p
from . import routes_upkeep as upkeep
from .operation import Operation

UPKEEP: tuple[Operation, ...] = (
    Operation(
        id="get_usage",
        method="GET",
        path=f"{API}/usage",
        handler=upkeep.usage,
        summary="What takes room in the state directory, by kind and by sandbox.",
        answers={200: UsageView},
    ),
    Operation(
        id="prune",
        method="POST",
        path=f"{API}/prune",
        handler=upkeep.prune,
        summary="Remove what nobody can ask for any more.",
        query=(p.DRY_RUN,),
        answers={200: PruneView},
    ),
)
