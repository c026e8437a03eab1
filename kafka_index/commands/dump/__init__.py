"""Print the contents of a partition's files."""
