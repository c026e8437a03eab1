"""``build``."""

from functools import partial

from kafka_index.cli.command import make_command as derive
from kafka_index.commands.build.request import BUILD

make_command = partial(derive, BUILD)
