"""Questions about partitions of a topic, answered on the screen: their logs, answers and records.

Of one partition everything that is known of the answer is printed; of several, a table, lines or
JSON. Only the directories of the partitions are read.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import click
import numpy as np
import pyarrow as pa

from kafka_index.cli.exit_status import ExitCode, run_summary
from kafka_index.cli.lookup_summary import (
    EXPLAINED,
    exit_code,
    print_findings,
    warn_of_starts,
    warn_of_unindexed,
)
from kafka_index.cli.terminal import Paint, Table, print_log, print_text
from kafka_index.commands.lookup.query_stats import starting_offsets_of
from kafka_index.commands.lookup.report import StartingOffset, behind_gaps
from kafka_index.core.errors import CorruptLogError, InputError, first_of, is_retriable
from kafka_index.core.format.config import topics_pattern
from kafka_index.core.format.human import format_count, shown_path
from kafka_index.core.format.names import (
    DirectoryKind,
    TopicPartition,
    is_legal_topic,
    split_directory_name,
)
from kafka_index.core.format.times import format_time
from kafka_index.core.fs.directories import directory_exists, scan_directory
from kafka_index.core.fs.paths import expand_directories
from kafka_index.core.log.read.answers import Answers, Finding, SpecialTimestamp, Status
from kafka_index.core.log.read.choices import Resolve, UpperBound
from kafka_index.core.logdir.listing import did_you_mean
from kafka_index.core.query.inventory import Inventory, collect_inventory
from kafka_index.core.query.keys import By, Keys, QueryBatch
from kafka_index.core.query.lookups import Lookups, LookupSettings

if TYPE_CHECKING:
    from kafka_index.cli.lookup_command import LookupOptions
    from kafka_index.cli.record_text import RecordText
    from kafka_index.core.query.printed_records import PrintedRecords

_OUTSIDE = (Status.BEFORE_LOG_START, Status.LOG_END, Status.AFTER_LOG_END)
_PARTITIONS_SHOWN = 10
_NOTHING = "-"


def answer_question(question: LookupOptions) -> ExitCode:
    """Answer a question about one partition, or about several, all of them or some.

    Raises `KafkaIndexError` if there is no such topic or partition, or it cannot be listed.
    """
    return (_answer_one if question.has_one_answer else _answer_several)(question)


def _inventory_of(question: LookupOptions) -> Inventory:
    """List the partitions that a question is about.

    Raises `KafkaIndexError` if there is no such topic or partition, or it cannot be listed.
    """
    paths: Sequence[str] = question.inputs
    topics = question.topics
    if question.topic is not None and question.tiered is None:
        numbers = sorted(set(question.partitions))
        paths = _partition_directories(paths, question.topic, numbers)
    elif question.topic is not None:
        # The events of other directories matter too.
        topics = topics_pattern([question.topic])
    return collect_inventory(
        paths,
        tiered=question.tiered,
        topics=topics,
        indexes=question.indexes,
        upper_bound=UpperBound(question.upper_bound),
    )


def _partition_directories(
    logs: Sequence[str], topic: str, partitions: Sequence[int] = ()
) -> list[str]:
    """Return the directories of some partitions of a topic, or of all.

    The logs are data directories, topic-partition directories, or globs of either. Raises
    `InputError` if a path does not exist, or one of the partitions is in none of them.
    """
    given = expand_directories(logs)
    if not is_legal_topic(topic):
        raise InputError("not a legal topic", found=repr(topic))
    if not partitions:
        existing = _directories_of(given)
        found = [path for each, paths in existing.items() if each.topic == topic for path in paths]
        if not found:
            raise _absent(logs, topic, existing)
        return found
    found = []
    for number in partitions:
        name = TopicPartition(topic, number).directory_name
        inside = [os.path.join(directory, name) for directory in given]
        directories = [path for path in inside if directory_exists(path)]
        directories += [path for path in given if os.path.basename(path) == name]
        if not directories:
            raise _absent(logs, topic, _directories_of(given), number)
        found += directories
    return found


def _directories_of(given: Sequence[str]) -> Mapping[TopicPartition, list[str]]:
    """Return the directories of all partitions that exist, by partition."""
    found: dict[TopicPartition, list[str]] = {}
    for directory in given:
        paths = {os.path.basename(directory): directory}
        try:
            paths |= {entry.name: entry.path for entry in scan_directory(directory)}
        except InputError as error:
            # Such as a file, or a directory that is not there: it has a partition's name, or none.
            if is_retriable(error):
                raise
        for name, path in paths.items():
            split = split_directory_name(name)
            if split is not None and split[1] is DirectoryKind.LIVE:
                found.setdefault(split[0], []).append(path)
    return {partition: found[partition] for partition in sorted(found)}


def _absent(
    logs: Sequence[str], topic: str, existing: Collection[TopicPartition], number: int | None = None
) -> InputError:
    """Return the error for a partition or a topic that is not there, with what is."""
    numbers = [each.partition for each in existing if each.topic == topic]
    what = f"topic {topic}" if number is None else f"partition {topic}-{number}"
    return InputError(
        f"no {what} here",
        path=", ".join(logs),
        found=f"its partitions {first_of(numbers, _PARTITIONS_SHOWN)}" if numbers else None,
        hint=None if numbers else did_you_mean(topic, (each.topic for each in existing)),
    )


def _answer_one(question: LookupOptions) -> ExitCode:
    partition = TopicPartition(str(question.topic), question.partitions[0])
    by, detail = By(question.by), question.detail
    default = Resolve.RECORD if question.show_record else by.default_resolve
    resolve = default if question.resolve is None else Resolve(question.resolve)
    inventory = _inventory_of(question)
    warn_of_unindexed(inventory, by, detail)
    warn_of_starts(inventory, detail)
    batch = _batch([partition], [question.key], specials=question.specials)
    with Lookups(inventory, LookupSettings(by, resolve, question.config)) as lookups:
        answers = lookups.answer(batch)
        status = Status(int(answers.status[0]))
        start = end = None
        if status in _OUTSIDE:
            (code,) = inventory.codes(batch.topics, batch.partitions.to_numpy()).tolist()
            start, end = lookups.start_offset(code), lookups.end_offset(code)
        findings = lookups.drain_findings()
    run_summary().add_count(f"queries_{status.text}", 1)
    run_summary().add_count("queries_behind_missing_offsets", behind_gaps(findings))
    (answer,) = answers.to_arrow().to_pylist()
    files = inventory.files(partition.topic, partition.partition)
    answer["log_path"] = next(
        (
            segment.log_path
            for segment in ([] if files is None else files.segments)
            if segment.base_offset == answer["segment_base_offset"]
        ),
        None,
    )
    found = None
    if question.show_record and answer["found_offset"] is not None:
        found = _read_record(partition, answer["found_offset"], question)
    if question.as_json:
        found_ms, log_path = answer["found_timestamp_ms"], answer.pop("log_path")
        answer |= {"log_start_offset": start, "log_end_offset": end}
        if found is not None:
            text, record = found
            answer["record"] = json.loads("".join(text.lines(record)))
        shown = {
            "topic": partition.topic,
            "partition": partition.partition,
            str(question.by): question.key,
            "resolve": resolve.value,
            **answer,
            "found_time": None if found_ms is None or found_ms < 0 else format_time(found_ms),
            "log_path": log_path,
        }
        click.echo(json.dumps(shown, ensure_ascii=False))
    else:
        place = "" if start is None else f"; the log begins at {start} and ends at {end}"
        if by is By.TIMESTAMP and status is Status.NO_RECORD_AT_OR_AFTER and files is not None:
            from kafka_index.core.query.bounds import time_span  # noqa: PLC0415, slow to import
            from kafka_index.core.query.settings import ReadSettings  # noqa: PLC0415, slow to import

            # A log that has no record as late as was asked for.
            place = f"; {time_span([files], ReadSettings()).text}"
        lines = _lines(question, partition, answer, status, place)
        if found is not None:
            text, record = found
            lines += _aligned(list(text.members(record)), len("leader epoch"))
        print_text(sys.stdout, lines)
    print_findings(findings, detail)
    return exit_code(findings, unanswered=status is Status.UNREADABLE)


def _lines(
    question: LookupOptions,
    partition: TopicPartition,
    answer: Mapping[str, Any],
    status: Status,
    place: str,
) -> list[str]:
    is_time = question.at is not None and not question.specials
    key = _time(question.key) if is_time else question.key
    lines = [f"{partition.directory_name}, {question.by} {key}: {status.text}"]
    if status is not Status.FOUND:
        lines[0] += f" ({EXPLAINED[status]}{place})"
    batch = entry = None
    if answer["batch_base_offset"] is not None:
        batch = (
            f"offsets {answer['batch_base_offset']} to {answer['batch_last_offset']}, "
            f"{answer['batch_size_bytes']} bytes at byte {answer['batch_position_bytes']}"
        )
    if answer["entry_offset"] is not None:
        time = _known_time(answer["entry_timestamp_ms"])
        entry = (
            f"offset {answer['entry_offset']}, byte {answer['entry_position_bytes']}"
            f"{'' if time is None else f', time {time}'}"
        )
    cells = {
        "offset": answer["found_offset"],
        "time": _known_time(answer["found_timestamp_ms"]),
        "leader epoch": answer["found_leader_epoch"],
        "batch": batch,
        "index entry": entry,
        "segment": answer["segment_base_offset"],
        "file": None if answer["log_path"] is None else shown_path(answer["log_path"]),
    }
    known = [(name, str(value)) for name, value in cells.items() if value is not None]
    return lines + _aligned(known, max(map(len, cells)))


def _aligned(members: Sequence[tuple[str, str]], width: int) -> list[str]:
    """Return names and texts in two columns; the first has at least a width."""
    width = max([width, *(len(name) for name, _ in members)])
    return [f"  {name.ljust(width)}  {text}" for name, text in members]


def _known_time(timestamp_ms: int | None) -> str | None:
    return None if timestamp_ms is None or timestamp_ms < 0 else _time(timestamp_ms)


def _time(timestamp_ms: int) -> str:
    text = format_time(timestamp_ms)
    return str(timestamp_ms) if text is None else f"{text} ({timestamp_ms})"


def _read_record(
    partition: TopicPartition, offset: int, question: LookupOptions
) -> tuple[RecordText, PrintedRecords] | None:
    """Return a record, and what formats it; None at a place without a record, such as the end.

    Raises `KafkaIndexError` if its batch cannot be read.
    """
    from kafka_index.cli.record_text import RecordText  # noqa: PLC0415, as above
    from kafka_index.core.query.bounds import BoundOptions  # noqa: PLC0415, slow to import
    from kafka_index.core.query.printed_records import (  # noqa: PLC0415, slow to import
        PRINTED_COLUMNS,
        PrintedRecords,
        decoder_of_topic,
    )
    from kafka_index.core.query.records import plan_read, read_plan  # noqa: PLC0415, as above
    from kafka_index.core.query.settings import ReadSettings  # noqa: PLC0415, slow to import

    paths: Sequence[str] = question.inputs
    topic, number = partition.topic, partition.partition
    if question.tiered is None:
        paths = _partition_directories(paths, topic, [number])
    plan = plan_read(
        paths,
        partitions={topic: [number]},
        bounds=BoundOptions(offset, offset + 1),
        settings=ReadSettings(
            columns=PRINTED_COLUMNS,
            include_control=True,
            max_decompressed_bytes=question.config.max_decompressed_bytes,
        ),
        config=question.config,
        tiered=question.tiered,
        indexes=question.indexes,
    )
    for batch in read_plan(plan):
        if batch.num_rows > 1:
            raise CorruptLogError(f"offset {offset} is that of more than one record")
        if batch.num_rows:
            decode = decoder_of_topic(topic)
            text = RecordText(as_json=question.as_json, keys=None, values=None, decode=decode)
            return text, PrintedRecords.of_rows(batch)
    return None


def _answer_several(question: LookupOptions) -> ExitCode:
    with ExitStack() as stack:
        files = None
        if question.has_files:
            from kafka_index.cli.lookup import offsets_files, write_offsets  # noqa: PLC0415, slow to import

            # A file that cannot be written ends the run before the work.
            files = stack.enter_context(offsets_files(question, question.folders))
        inventory = _inventory_of(question)
        warn_of_starts(inventory, question.detail)
        answers, findings, starts = _answers(inventory, question)
        for answer in answers:
            run_summary().add_count(f"queries_{answer.get('status', 'listed')}", 1)
        run_summary().add_count("queries_behind_missing_offsets", behind_gaps(findings))
        if question.as_json:
            sys.stdout.writelines(json.dumps(answer) + "\n" for answer in answers)
        elif question.as_offsets:
            _print_offsets(answers)
        else:
            print_text(sys.stdout, [_table(question, answers)])
        print_findings(findings, question.detail)
        if files is not None:
            write_offsets(files, starts, findings)
            for file, _ in files:
                file.commit()
    unreadable = Status.UNREADABLE.text
    return exit_code(findings, unanswered=any(each.get("status") == unreadable for each in answers))


def _asked(inventory: Inventory, question: LookupOptions) -> list[int]:
    """Return the numbers of the partitions that are asked, in order."""
    rows = inventory.partitions.select(["topic", "partition"]).to_pylist()
    of_topics = [code for code, row in enumerate(rows) if question.topic in (None, row["topic"])]
    if not question.partitions:
        return of_topics
    for number in sorted(set(question.partitions).difference(row["partition"] for row in rows)):
        chosen = f"topic {question.topic}"
        if question.topics is not None:
            chosen = f"the topics that match {question.topics.pattern!r}"
        raise InputError(
            f"no partition {number} of {chosen} here", path=", ".join(question.folders)
        )
    return [code for code in of_topics if rows[code]["partition"] in question.partitions]


def _answers(
    inventory: Inventory, question: LookupOptions
) -> tuple[list[dict[str, Any]], list[Finding], list[StartingOffset]]:
    """Return the answers of partitions, and the findings about their logs.

    The question has one key, asked of every partition; without one only the bounds are in the
    answers. Where its answers go into files, their starting offsets come third.
    """
    codes = _asked(inventory, question)
    rows = inventory.partitions.take(pa.array(codes, pa.int64())).to_pylist()
    partitions = [TopicPartition(row["topic"], row["partition"]) for row in rows]
    findings: list[Finding] = []
    starting_offsets: list[StartingOffset] = []
    answers = None

    def answer(lookups: Lookups) -> Answers:
        batch = _batch(partitions, [question.key] * len(rows), specials=question.specials)
        found = lookups.answer(batch)
        if question.has_files:
            starting_offsets.extend(starting_offsets_of(lookups, batch, found, len(rows)))
        return found

    level = Resolve.RECORD
    with Lookups(inventory, LookupSettings(By.TIMESTAMP, level, question.config)) as lookups:
        largest = [int(SpecialTimestamp.MAX_TIMESTAMP)] * len(rows)
        latest = lookups.answer(_batch(partitions, largest))
        starts, ends = (
            [
                bound(code) if row["segment_count"] else None
                for code, row in zip(codes, rows, strict=True)
            ]
            for bound in (lookups.start_offset, lookups.end_offset)
        )
        if question.by == By.TIMESTAMP.value:
            answers = answer(lookups)
        findings += lookups.drain_findings()
    with Lookups(inventory, LookupSettings(By.OFFSET, level, question.config)) as lookups:
        first = lookups.answer(_batch(partitions, [start or 0 for start in starts]))
        if question.by == By.OFFSET.value:
            answers = answer(lookups)
        findings += lookups.drain_findings()
    shown = []
    for partition, start, end, one, last in zip(
        partitions, starts, ends, _found(first), _found(latest), strict=True
    ):
        shown.append(
            {
                "topic": partition.topic,
                "partition": partition.partition,
                "start_offset": start,
                "end_offset": end,
                # Those are its records where none was compacted away and none is a marker.
                "max_records": None if start is None or end is None else max(end - start, 0),
                "first_timestamp_ms": one["found_timestamp_ms"],
                "max_timestamp_ms": last["found_timestamp_ms"],
            }
        )
    if answers is not None:
        for row, found in zip(shown, _found(answers), strict=True):
            row.update({str(question.by): question.key} | found)
    return shown, list(dict.fromkeys(findings)), starting_offsets


def _found(answers: Answers) -> list[dict[str, Any]]:
    """Return status, offset and time of answers; without a time where the record has none."""
    names = ["status", "found_offset", "found_timestamp_ms"]
    rows: list[dict[str, Any]] = answers.to_arrow().select(names).to_pylist()
    for row in rows:
        if (row["found_timestamp_ms"] or 0) < 0:
            row["found_timestamp_ms"] = None
    return rows


def _batch(
    partitions: Sequence[TopicPartition], keys: Sequence[int], *, specials: bool = True
) -> QueryBatch:
    """Return a query for each partition."""
    topics = pa.array([each.topic for each in partitions], pa.string())
    numbers = pa.array([each.partition for each in partitions], pa.int64())
    return QueryBatch(topics, numbers, Keys(np.array(keys, np.int64), specials=specials))


def _table(question: LookupOptions, answers: Sequence[Mapping[str, Any]]) -> Table:
    """Return the table of answers; that of several topics begins with their names."""
    paint = Paint(sys.stdout)

    def status(text: str) -> str:
        return (paint.good if text == Status.FOUND.text else paint.notable)(text)

    columns: list[tuple[str, str, Callable[[Any], str]]] = [
        ("partition", "partition", str),
        ("start", "start_offset", str),
        ("end", "end_offset", str),
        ("max records", "max_records", format_count),
        ("first time", "first_timestamp_ms", _short_time),
        ("last time", "max_timestamp_ms", _short_time),
    ]
    if question.topics is not None:
        columns.insert(0, ("topic", "topic", str))
    if question.by is not None:
        columns += [
            ("answer", "found_offset", str),
            ("time", "found_timestamp_ms", _short_time),
            ("status", "status", status),
        ]
    rows = [
        [_NOTHING if answer[name] is None else shown(answer[name]) for _, name, shown in columns]
        for answer in answers
    ]
    titles = [title for title, *_ in columns]
    texts = {"topic", "first time", "last time", "time", "status"}
    return Table(titles, rows, [at for at, title in enumerate(titles) if title in texts])


def _short_time(timestamp_ms: int) -> str:
    return format_time(timestamp_ms) or str(timestamp_ms)


def _print_offsets(answers: Sequence[Mapping[str, Any]]) -> None:
    """Print lines as ``kafka-get-offsets`` does; without a question the ends."""
    for answer in answers:
        place = f"{answer['topic']}:{answer['partition']}"
        offset = answer.get("found_offset") if "status" in answer else answer["end_offset"]
        if offset is None:
            print_log(f"no offset for {place}: {answer.get('status', 'not known')}")
        else:
            sys.stdout.write(f"{place}:{offset}\n")
