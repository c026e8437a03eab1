"""Look up offsets and timestamps in one partition."""
