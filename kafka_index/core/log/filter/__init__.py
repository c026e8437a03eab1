"""Copy the segments of a partition without selected records."""
