"""One package for each command."""
