"""Schemas of typed records: where they come from, and what bytes of a record name them."""
