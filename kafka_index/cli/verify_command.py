"""``verify``."""

from functools import partial

from kafka_index.cli.command import make_command as derive
from kafka_index.commands.verify.request import VERIFY

make_command = partial(derive, VERIFY)
