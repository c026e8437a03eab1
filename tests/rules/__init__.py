"""Rules that hold for every command."""
