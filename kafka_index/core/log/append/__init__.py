"""Append batches to partition logs like a broker."""
