"""Reading queries: which files, what is in them, and the pieces that tasks take."""
