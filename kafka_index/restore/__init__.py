"""Restoring dumps: data directories that a broker mounts at once, from logs that are only read."""
