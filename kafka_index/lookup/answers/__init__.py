"""Writing answers: files of all formats, and an output that appears whole or not at all."""
