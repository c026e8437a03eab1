"""Producer state, transaction state and producer snapshots."""
