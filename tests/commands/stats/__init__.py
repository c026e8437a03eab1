"""Tests of `kafka_index.commands.stats`."""
