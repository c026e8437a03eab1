"""``predict``."""

from functools import partial

from kafka_index.cli.command import make_command as derive
from kafka_index.commands.predict.request import PREDICT

make_command = partial(derive, PREDICT)
