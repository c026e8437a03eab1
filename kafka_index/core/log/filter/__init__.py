"""Copy a partition without some of its records."""
