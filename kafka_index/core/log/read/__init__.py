"""Read one partition by offset and by time."""
