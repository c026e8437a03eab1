"""`kafka-index restore`."""
