"""``warm-up``."""

from functools import partial

from kafka_index.cli.command import make_command as derive
from kafka_index.commands.warm_up.request import WARM_UP

make_command = partial(derive, WARM_UP)
