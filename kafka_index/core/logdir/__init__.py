"""What a data directory shows without reading a log."""
