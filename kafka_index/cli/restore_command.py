"""``restore``."""

from functools import partial

from kafka_index.cli.command import make_command as derive
from kafka_index.commands.restore.request import RESTORE

make_command = partial(derive, RESTORE)
