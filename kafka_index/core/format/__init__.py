"""Bytes on disk: messages, index entries, file names, checkpoints and settings by name."""
