"""Copy a partition without selected records."""
