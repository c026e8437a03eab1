"""The options of tiered storage, one group for every command that reads logs."""

from __future__ import annotations

import os
from collections.abc import Sequence

import click

from kafka_index.cli.options import Decorator, keep, kept
from kafka_index.tiered.options import TieredOptions

_FORMATS = ("auto", "aiven", "local")
_COMPANIONS = ("--tiered-format", "--key-prefix", "--tiered-key", "--topic-id")


def tiered_options() -> list[Decorator]:
    """Return the options of remote segments: ``tiered``, a `TieredOptions` or None."""
    return [
        click.option(
            "--tiered",
            multiple=True,
            callback=_tiered,
            metavar="URI",
            help="Tiered storage: the folder that LocalTieredStorage or Aiven's plugin writes to. "
            "With the logs beside it, each partition is the union of both. May be repeated.",
        ),
        click.option(
            "--tiered-format",
            type=click.Choice(_FORMATS),
            default="auto",
            show_default=True,
            is_eager=True,
            expose_value=False,
            callback=keep,
            help="Whose layout the objects have; auto goes by their keys.",
        ),
        click.option(
            "--key-prefix",
            is_eager=True,
            expose_value=False,
            callback=keep,
            metavar="PREFIX",
            help="key.prefix of Aiven's plugin: only objects whose keys begin with it.",
        ),
        click.option(
            "--tiered-key",
            multiple=True,
            is_eager=True,
            expose_value=False,
            callback=keep,
            metavar="KEYID=PEM",
            help="The private key of a key pair of encrypted segments, a file. May be repeated.",
        ),
        click.option(
            "--topic-id",
            multiple=True,
            is_eager=True,
            expose_value=False,
            callback=keep,
            metavar="ID",
            help="The topic to take where several have one name.  [default: the live one]",
        ),
    ]


def _tiered(
    context: click.Context, _option: click.Parameter, uris: tuple[str, ...]
) -> TieredOptions | None:
    companions = {name: kept(context, _name(name)) for name in _COMPANIONS}
    layout, prefix, keys, topic_ids = companions.values()
    if not uris:
        companions["--tiered-format"] = None if layout == "auto" else layout
        given = [name for name, value in companions.items() if value not in (None, ())]
        if given:
            raise click.UsageError(f"{given[0]} requires --tiered")
        return None
    return TieredOptions(
        uris, None if layout == "auto" else layout, prefix, topic_ids, _key_files(keys)
    )


def check_input(paths: Sequence[str], tiered: TieredOptions | None) -> None:
    """Refuse a run without logs."""
    if not (paths or tiered):
        raise click.UsageError("no input: give --input PATH or --tiered URI")


def _name(option: str) -> str:
    return option.removeprefix("--").replace("-", "_")


def _key_files(texts: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Return the files of key pairs by id; the keys themselves are read where they are used."""
    files: dict[str, str] = {}
    for text in texts:
        key_id, separator, path = text.partition("=")
        if not (key_id and separator and path):
            raise click.BadParameter("expected KEYID=PEM", param_hint="--tiered-key")
        if key_id in files:
            raise click.BadParameter(f"{key_id} is given twice", param_hint="--tiered-key")
        if not os.path.isfile(path):
            raise click.BadParameter(f"{path} is not a file", param_hint="--tiered-key")
        files[key_id] = os.path.abspath(path)
    return tuple(files.items())
