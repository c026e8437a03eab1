"""``import``."""

from functools import partial

from kafka_index.cli.command import make_command as derive
from kafka_index.commands.import_.request import IMPORT

make_command = partial(derive, IMPORT)
