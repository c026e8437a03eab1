"""Tests that compare this package with Kafka's own classes and with running brokers."""

import os

# Before any test imports aiokafka, whose compiled part takes every entry of a buffer to be of the
# first one's magic.
os.environ["AIOKAFKA_NO_EXTENSIONS"] = "1"
