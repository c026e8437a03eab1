"""What is read from the logs of a cluster: cluster metadata, replicas, and remote segments."""
