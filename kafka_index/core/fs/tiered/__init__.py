"""Objects of tiered storage plugins."""
