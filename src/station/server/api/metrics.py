"""GET /metrics, in the text form of Prometheus. What others know already is read when it is asked for; no label names a
sandbox, a key or anything that a user wrote."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from station.core.states import PublicState, public
from station.worker.meter import BOUNDS, Durations

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

    from station.server.station import Station

MEDIA = "text/plain; version=0.0.4; charset=utf-8"
_STATES: tuple[PublicState, ...] = ("creating", "running", "suspended", "failed")


async def exposition(station: Station) -> bytes:
    """Everything, as it is now. Raises what the registry and the file store raise."""
    # Loaded for this alone.
    from prometheus_client import CollectorRegistry, generate_latest

    records, damaged = await station.records()
    states = Counter[str](public(record.state) for record in records)
    states["failed"] += len(damaged)
    room = await station.store.room()
    made = list(_families(station, states, files=room.files, used=room.used_bytes, most=room.limit_bytes))
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Made(made))
    return generate_latest(registry)


class _Made:
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def _families(station: Station, states: Mapping[str, int], *, files: int, used: int, most: int) -> Iterator[Metric]:
    from prometheus_client.metrics_core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
    )

    def gauge(name: str, words: str, value: float) -> Metric:
        return GaugeMetricFamily(f"station_{name}", words, value=value)

    def durations(name: str, words: str, found: Mapping[tuple[str, str], Durations]) -> Metric:
        made = HistogramMetricFamily(f"station_{name}", words, labels=("backend", "outcome"))
        for labels, one in sorted(found.items()):
            made.add_metric(labels, _buckets(one), sum_value=one.seconds)
        return made

    meter, traffic = station.meter, station.traffic
    sandboxes = GaugeMetricFamily("station_sandboxes", "Sandboxes, by state.", labels=("state",))
    for state in _STATES:
        sandboxes.add_metric((state,), states.get(state, 0))
    yield sandboxes
    yield gauge("live_boxes", "Boxes of sandboxes that live.", len(station.boxes))
    yield gauge("pool_boxes", "Boxes made ahead that stand ready.", len(station.pool))
    yield gauge("unsettled_sandboxes", "Sandboxes whose box could not be asked yet.", len(station.boxes.unsettled))
    yield gauge("running_processes", "Commands in sandboxes that run.", len(station.processes.running()))
    yield gauge("running_runs", "Runs under way.", len(station.runs.running()))
    endings = CounterMetricFamily("station_commands_ended", "Commands that ended, by kind.", labels=("ending",))
    for kind, count in sorted(meter.endings.items()):
        endings.add_metric((kind,), count)
    yield endings
    yield durations("box_create_seconds", "From the wish for a box to the first word of its guest.", meter.boxes)
    yield durations("run_seconds", "Runs, with their wait for a box, by how they ended.", meter.runs)
    yield gauge("stored_files", "Files in the file store.", files)
    yield gauge("stored_bytes", "Bytes in the file store, equal contents of one owner once.", used)
    yield gauge("stored_bytes_limit", "The most that may be in it.", most)
    answered = CounterMetricFamily("station_http_requests", "Requests answered.", labels=("method", "route", "status"))
    for (method, route, status), count in sorted(_by_class(traffic.answered).items()):
        answered.add_metric((method, route, status), count)
    yield answered
    yield gauge("requests_under_way", "Requests that are being answered.", station.activity.requests)
    yield HistogramMetricFamily(
        "station_event_loop_lag_seconds",
        "How late the event loop was, looked at each second.",
        buckets=_buckets(traffic.lag),
        sum_value=traffic.lag.seconds,
    )
    yield gauge("start_time_seconds", "When the station started.", station.started_at)


def _by_class(answered: Mapping[tuple[str, str, int], int]) -> Counter[tuple[str, str, str]]:
    found: Counter[tuple[str, str, str]] = Counter()
    for (method, route, status), count in answered.items():
        found[method, route, f"{status // 100}xx"] += count
    return found


def _buckets(durations: Durations) -> list[tuple[str, float]]:
    """Each with those of the smaller ones, as Prometheus wants."""
    made: list[tuple[str, float]] = []
    total = 0
    for bound, count in zip([*map(str, BOUNDS), "+Inf"], durations.counts, strict=True):
        total += count
        made.append((bound, total))
    return made
