"""Outputs: check, lock, stage, publish and sweep."""
