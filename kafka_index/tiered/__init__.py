"""Tiered partitions: the union of remote segments, their states, and what is still local."""
