"""``python -m benchmarks [NAME...]``: measure, and end with 1 when a goal is missed."""

from __future__ import annotations

import importlib
from pathlib import Path

import click

_NAMES = (
    "first_minute",
    "recover",
    "headers",
    "spark_job",
    "lookup",
    "warm_cold",
    "lookup_jobs",
    "lookup_frames",
    "remote_lookups",
    "remote_builds",
    "many_segments",
    "state",
    "append",
    "mount",
    "records",
    "typed",
    "spark_records",
    "stores",
    "writing",
    "verify",
    "restore",
    "restored_start",
    "backup",
)


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(_NAMES))
@click.option(
    "--scratch",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("build/benchmarks"),
    show_default=True,
    help="Folder for the logs that are measured on; about 6 GB.",
)
def main(names: tuple[str, ...], scratch: Path) -> None:
    """Measure speed and memory against Kafka's own code, in ratios within one run."""
    scratch = scratch.resolve()
    scratch.mkdir(parents=True, exist_ok=True)
    missed = []
    for name in names or _NAMES:
        if not importlib.import_module(f"benchmarks.{name}").run(scratch):
            missed.append(name)
        print()
    if missed:
        raise SystemExit(f"goals missed: {', '.join(missed)}")


main()
