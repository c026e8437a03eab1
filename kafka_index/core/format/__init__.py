"""On-disk formats: messages, index entries, file names, checkpoints, and settings."""
