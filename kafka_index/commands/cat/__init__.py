"""Print the records of a topic."""
