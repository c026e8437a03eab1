"""What is told of a run: by piece, in all, and as places to start reading from."""
