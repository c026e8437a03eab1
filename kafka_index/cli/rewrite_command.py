"""``rewrite``."""

from functools import partial

from kafka_index.cli.command import make_command as derive
from kafka_index.commands.rewrite.request import REWRITE

make_command = partial(derive, REWRITE)
