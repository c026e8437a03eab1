"""Records and offsets by range, time and key."""
