"""On-disk layouts: dtypes and field tables, limits, sentinels, names and checkpoint texts."""
