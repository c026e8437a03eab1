"""The real Kafka as judge: what its recovery leaves on disk, held against what a build leaves."""

import os

# Before any test imports aiokafka, whose compiled part takes every entry of a buffer to be of the
# first one's magic.
os.environ["AIOKAFKA_NO_EXTENSIONS"] = "1"
