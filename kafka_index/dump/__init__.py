"""A dump: data directories and their root files, partitions and their copies, missing offsets."""
