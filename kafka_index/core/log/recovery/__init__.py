"""Log recovery: scan segments, merge their producers and leader epochs, and publish index files."""
