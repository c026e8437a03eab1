"""``export``."""

from functools import partial

from kafka_index.cli.command import make_command as derive
from kafka_index.commands.export.request import EXPORT

make_command = partial(derive, EXPORT)
