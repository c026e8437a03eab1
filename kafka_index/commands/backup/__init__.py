"""`kafka-index backup` and `kafka-index backups`."""
