"""Topics, groups, transactions and producers from the internal topics."""
