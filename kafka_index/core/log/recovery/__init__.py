"""Log recovery: scan segments, merge their state, publish index files."""
