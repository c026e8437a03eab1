"""Append to logs as a broker does."""
