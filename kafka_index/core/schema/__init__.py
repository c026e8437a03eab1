"""Schemas of typed records: their sources, and the schema IDs in the bytes of records."""
