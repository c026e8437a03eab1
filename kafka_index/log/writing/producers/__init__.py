"""The producers of a log that grows."""
