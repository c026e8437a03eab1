"""Iterate over the batches of a log segment, and check or index these batches."""
