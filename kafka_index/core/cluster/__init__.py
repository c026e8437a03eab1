"""Information from reading logs: metadata, replicas, remote segments."""
