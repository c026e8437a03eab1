"""What happens to batches on their way into a log."""
