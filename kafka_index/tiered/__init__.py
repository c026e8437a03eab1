"""Tiered partitions: remote segments, their states, and their union with local ones."""
