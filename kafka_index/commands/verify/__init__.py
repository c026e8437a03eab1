"""`kafka-index verify`."""
