"""What runs a build or a lookup: threads of this process, or a Spark session made here."""
