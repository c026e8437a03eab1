"""`kafka-index build`."""
