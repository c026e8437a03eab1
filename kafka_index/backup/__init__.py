"""Backups of running brokers: cuts, pieces, runs, and what is kept of them."""
