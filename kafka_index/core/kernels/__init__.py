"""Compiled loops over the bytes of logs and indexes."""
