"""What there is to look into: partitions and their segments, as tables and by number."""
