"""Lookups by offset and by time in one partition."""
