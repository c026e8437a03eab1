"""What is known only by reading logs: metadata, replicas, remote segments."""
