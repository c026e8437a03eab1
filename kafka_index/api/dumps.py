"""`verify`, `predict`."""

from __future__ import annotations

from collections.abc import Sequence

from kafka_index.commands.verify.findings import Finding, PartitionFindings
from kafka_index.commands.verify.verify_job import Verification, VerifyJob, VerifyRequest
from kafka_index.core.arguments import (
    config_of,
    optional_path,
    paths_of,
    properties_of,
    threads_of,
    time_of,
    whole,
    with_flags,
)
from kafka_index.core.cluster.remote.options import TieredOptions
from kafka_index.core.errors import ConfigError
from kafka_index.core.format.config import (
    DEFAULT_MAX_DECOMPRESSED_BYTES,
    topics_pattern,
)
from kafka_index.core.format.times import Time
from kafka_index.core.fs.inputs import reading_inputs, unread_texts
from kafka_index.core.job.engine import Listener
from kafka_index.core.parameters import Config, Path, Paths, Tiered, Topics
from kafka_index.core.startup.conditions import start_conditions
from kafka_index.core.startup.directories import predict_start
from kafka_index.core.startup.identity import input_directories
from kafka_index.core.startup.prediction import Prediction


@with_flags
def verify(
    paths: Paths,
    *,
    tiered: Tiered | None = None,
    indexes: Path | None = None,
    metadata: Path | None = None,
    against: Paths = (),
    topics: Topics | None = None,
    fast: bool = False,
    config: Config | None = None,
    threads: int | None = None,
    now: Time | None = None,
    follow_links: bool = False,
) -> Verification:
    """Compare every file of a dump with what it should be, as ``kafka-index verify`` does.

    Parameters
    ----------
    paths : path, or list of path
        Data directories, partition directories, or globs of either; local paths or URIs.
    tiered : URI, list of URI, or TieredOptions, optional
        The places of remote segments.
    indexes : path, optional
        Folder that mirrors the partition directories and holds the files to verify; by default
        they are beside the logs.
    metadata : path, optional
        The directory of the metadata log, by default the one in the dump: it says which topics are
        compacted, and their ids.
    against : path, or list of path
        Compare the batches with those of another copy instead: no file is verified.
    topics : str, re.Pattern or list of str, optional
        Only topics that match the regular expression in full, or that are named.
    fast : bool
        Read the headers of batches only: checksums are not verified.
    config : path, mapping or LogConfig, optional
        Kafka's settings, such as a broker's ``server.properties``. The node id and the directory of
        the metadata log among them are compared with the directories.
    threads : int, optional
        Segments scanned at a time; by default one a core, two for remote inputs.
    now : time, optional
        The time at which the broker would start, by default now: producers that are idle then do
        not count.
    follow_links : bool
        Whether index files, checkpoints and snapshots are read also where they are links that lead
        out of the input. Otherwise they are not opened, and what needs them is reported as
        unreadable.

    Returns
    -------
    Verification
        A row per file and partition; a file that cannot be read is a row too.

    Raises
    ------
    InputError
        Nothing is found, or a path cannot be listed.
    ConfigError
        An argument is wrong.

    Examples
    --------
    >>> found = kafka_index.verify("examples/dump", config="examples/dump.properties")
    >>> found.ok
    True
    >>> found.counts["files_harmful"]
    0
    """
    request = VerifyRequest(
        inputs=paths_of(paths),
        tiered=TieredOptions.of(tiered),
        indexes=optional_path(indexes, "indexes"),
        metadata=optional_path(metadata, "metadata"),
        against=paths_of(against, "against"),
        topics=topics_pattern(topics),
        fast=fast,
        config=config_of(config),
        properties=properties_of(config),
        now_ms=None if now is None else time_of(now, "now"),
    )
    others = {"indexes": indexes, "fast": fast or None}
    other = next((name for name, value in others.items() if value is not None), None)
    if request.against and other is not None:
        raise ConfigError(f"against and {other} exclude each other")
    engine = threads_of(threads)
    findings = _Findings()
    with reading_inputs(follow_links=follow_links) as unread:
        job = VerifyJob.prepare(request)
        job.run(engine, findings)
    partitions = sorted(findings.partitions, key=lambda one: (one.topic, one.partition))
    size_bytes = job.segments.total_bytes
    return Verification(partitions, findings.rows, size_bytes, unread_texts(unread))


@with_flags
def predict(
    paths: Paths,
    *,
    metadata: Path | None = None,
    config: Config | None = None,
    known_losses: Path | None = None,
    max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
) -> Prediction:
    """Predict what a broker does to its log directories when it starts, as ``predict`` does.

    Nothing is written.

    Parameters
    ----------
    paths : path, or list of path
        All data directories of one broker, on a local disk.
    metadata : path, optional
        The metadata log directory; by default that of the settings, or the one in the directories.
    config : path, mapping or LogConfig, optional
        Kafka's settings, such as the broker's ``server.properties``.
    known_losses : path, optional
        A restore report. The offsets that it lists as lost are not predicted as losses.
    max_decompressed_bytes : int
        The most bytes of decompressed metadata that this process holds at a time.

    Returns
    -------
    Prediction
        The verdict, the partitions, and a row per segment.

    Raises
    ------
    InputError
        A directory cannot be read, or a running broker holds it.
    ConfigError
        An argument is wrong.

    Examples
    --------
    >>> found = kafka_index.predict("examples/dump")
    >>> found.verdict.value
    'safe'
    >>> found.counts["records_lost"]
    0
    """
    inputs = paths_of(paths)
    if not inputs:
        raise ConfigError("paths is empty", expected="all data directories of one broker")
    directories = input_directories(inputs)
    most = whole(max_decompressed_bytes, "max_decompressed_bytes", least=1)
    conditions = start_conditions(
        directories,
        optional_path(metadata, "metadata"),
        properties_of(config),
        config_of(config),
        most,
        optional_path(known_losses, "known_losses"),
    )
    return predict_start(directories, conditions)


class _Findings(Listener):
    """Keeps what a verification finds."""

    def __init__(self) -> None:
        self.partitions: list[PartitionFindings] = []
        self.rows: list[Finding] = []

    def on_findings(self, findings: Sequence[Finding]) -> None:
        """Keep the findings of files at the root, or of a comparison."""
        self.rows += findings

    def on_partition(self, found: PartitionFindings) -> None:
        """Keep the findings of a partition."""
        self.partitions.append(found)
