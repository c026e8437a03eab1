"""Record batches and their records, as bytes."""
