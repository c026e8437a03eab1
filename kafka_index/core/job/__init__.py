"""Results, engines and progress."""
