"""Records exported to Parquet or JSON lines, in folders by topic and partition; incremental."""
