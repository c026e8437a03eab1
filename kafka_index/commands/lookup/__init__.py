"""`kafka-index lookup`."""
