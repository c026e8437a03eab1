"""The log of one partition: scan, read, append, load, recover and filter its segments."""
