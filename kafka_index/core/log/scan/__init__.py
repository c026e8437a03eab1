"""Iterate over the batches of a log segment."""
