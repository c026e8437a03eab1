"""`kafka-index export`."""
