"""`kafka-index import`."""
