"""`kafka-index rewrite`."""
