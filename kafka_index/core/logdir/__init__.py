"""Contents of a data directory that are visible without reading logs."""
