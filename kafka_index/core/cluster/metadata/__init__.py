"""Topics, groups, transactions and producers, read from Kafka's internal topics."""
