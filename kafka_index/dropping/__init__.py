"""Records that are dropped from logs: which they are, and the logs without them."""
