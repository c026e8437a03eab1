"""Files for the monitor of a broker's backups: metrics in Prometheus' text format, and health.

Both files are replaced as a whole. Counters continue from the file that an earlier process left, so
that they hold for runs by cron too; Prometheus reads the file through the textfile collector of its
node exporter.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from kafka_index.errors import printable
from kafka_index.layout.times import now_ms, time_text
from kafka_index.stores.backup.manifest import Manifest
from kafka_index.stores.registry import store_of, whole_file

_PREFIX = "kafka_index_backup_"
_SECOND_MS = 1000
_COUNTER = re.compile(rf"^({_PREFIX}\w+_total{{[^}}]*}}) ([0-9]+)$", re.MULTILINE)
#: How runs end: with all partitions, without some, or not at all.
_DONE, _MISSED, _FAILED = "done", "missed", "failed"
_HELP = {
    "runs_total": "Runs, by how they ended: done, missed (without some partition) or failed.",
    "uploaded_bytes_total": "Bytes that were new in the repository.",
    "failed_runs": "Runs that have failed since the last one that did not.",
    "last_cut_timestamp_seconds": "When the newest run of this broker was cut.",
    "last_end_timestamp_seconds": "When the last run ended, failed ones included.",
    "age_seconds": "Since the newest run of this broker was cut, when this file was written.",
    "run_seconds": "Duration of the newest run.",
    "uploaded_bytes": "Bytes that were new in the newest run.",
    "stored_bytes": "Bytes of all that the newest run consists of.",
    "lag_bytes": "Bytes at the ends of logs that were cut and not stored: above a high watermark.",
    "partitions": "Partitions in the newest run.",
    "missed_partitions": "Partitions that the newest run could not take.",
    "missing_brokers": "Expected brokers that were not there when the newest run was cut.",
}


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a file of health, for probes and people; times are ISO 8601."""

    healthy: bool
    run: str | None
    cut: str | None
    ended: str
    failed_runs: int
    missed_partitions: int
    error: str | None


@dataclass(frozen=True)
class _Newest:
    """The newest run of a broker."""

    manifest: Manifest
    run_ms: int

    def gauges(self, now: int) -> dict[str, float]:
        found = self.manifest
        cut_ms = found.cut.begun_ms
        stored = sum(piece.size_bytes for each in found.partitions for piece in each.pieces)
        there = {found.node_id, *found.cut.met}
        missing = {*found.brokers} - there if found.cut.met else ()
        lag = sum(
            log.size_bytes - log.covered_bytes for each in found.partitions for log in each.segments
        )
        return {
            "last_cut_timestamp_seconds": cut_ms / _SECOND_MS,
            "age_seconds": max(now - cut_ms, 0) / _SECOND_MS,
            "run_seconds": self.run_ms / _SECOND_MS,
            "uploaded_bytes": found.new_bytes,
            "stored_bytes": stored,
            "lag_bytes": lag,
            "partitions": len(found.partitions),
            "missed_partitions": len(found.missed),
            "missing_brokers": len(missing),
        }


class Monitor:
    """Writes the metrics and the health of the backups of one broker.

    The paths are None for files that are not wanted.
    """

    def __init__(self, node_id: int, metrics_path: str | None, health_path: str | None) -> None:
        self._metrics_path, self._health_path = metrics_path, health_path
        self._labels = f'node="{node_id}"'
        self._counters: dict[str, int] = {}
        for outcome in (_DONE, _MISSED, _FAILED):
            self._count("runs_total", 0, f'result="{outcome}"')
        self._count("uploaded_bytes_total", 0)
        self._continue_counters()
        self._newest: _Newest | None = None
        self._failed = 0
        self._ended_ms: int | None = None

    def on_run(self, manifest: Manifest, run_ms: int) -> None:
        """Count a run that is in the repository, and write both files."""
        self._newest = _Newest(manifest, run_ms)
        self._failed = 0
        self._count("runs_total", 1, f'result="{_MISSED if manifest.missed else _DONE}"')
        self._count("uploaded_bytes_total", manifest.new_bytes)
        self._on_end(None)

    def on_failure(self, error: BaseException) -> None:
        """Count a run that failed, and write both files."""
        self._failed += 1
        self._count("runs_total", 1, f'result="{_FAILED}"')
        self._on_end(printable(str(error)))

    def write_metrics(self) -> None:
        """Write the metrics again, with the age of now."""
        if self._metrics_path is not None:
            _write(self._metrics_path, self._text().encode(), "metrics")

    def _on_end(self, error: str | None) -> None:
        self._ended_ms = now_ms()
        self.write_metrics()
        if self._health_path is None:
            return
        manifest = None if self._newest is None else self._newest.manifest
        health = Health(
            healthy=error is None,
            run=None if manifest is None else manifest.run,
            cut=None if manifest is None else time_text(manifest.cut.begun_ms),
            ended=time_text(self._ended_ms),
            failed_runs=self._failed,
            missed_partitions=0 if manifest is None else len(manifest.missed),
            error=error,
        )
        _write(self._health_path, msgspec.json.encode(health) + b"\n", "health")

    def _count(self, name: str, more: int, *labels: str) -> None:
        key = f"{_PREFIX}{name}{{{','.join((self._labels, *labels))}}}"
        self._counters[key] = self._counters.get(key, 0) + more

    def _continue_counters(self) -> None:
        if self._metrics_path is None:
            return
        with suppress(FileNotFoundError, UnicodeDecodeError):
            text = store_of(self._metrics_path).read(self._metrics_path).decode()
            for key, count in _COUNTER.findall(text):
                if key in self._counters:
                    self._counters[key] = int(count)

    def _text(self) -> str:
        now = now_ms()
        gauges: dict[str, float] = {"failed_runs": self._failed}
        if self._ended_ms is not None:
            gauges["last_end_timestamp_seconds"] = self._ended_ms / _SECOND_MS
        if self._newest is not None:
            gauges |= self._newest.gauges(now)
        lines: list[str] = []
        for name, help_text in _HELP.items():
            kind = "counter" if name.endswith("_total") else "gauge"
            samples: Sequence[str] = ()
            if kind == "counter":
                samples = [
                    f"{key} {count}"
                    for key, count in self._counters.items()
                    if key.startswith(f"{_PREFIX}{name}{{")
                ]
            elif name in gauges:
                samples = [f"{_PREFIX}{name}{{{self._labels}}} {gauges[name]}"]
            if samples:
                lines += [f"# HELP {_PREFIX}{name} {help_text}", f"# TYPE {_PREFIX}{name} {kind}"]
                lines += samples
        return "".join(f"{line}\n" for line in lines)


def _write(path: str, data: bytes, what: str) -> None:
    with whole_file(path, what=f"file of {what}") as file:
        file.write(data)
        file.commit(durable=False)
