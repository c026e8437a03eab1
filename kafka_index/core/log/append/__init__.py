"""Append to logs like a broker."""
