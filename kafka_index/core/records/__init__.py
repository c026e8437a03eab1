"""Record batches and records."""
