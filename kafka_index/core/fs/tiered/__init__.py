"""Objects of remote storage plugins (tiered storage)."""
