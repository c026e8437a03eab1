"""One partition: scan, state, read, append, load, recover and filter."""
