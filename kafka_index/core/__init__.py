"""Kafka storage without commands, Spark or click."""
