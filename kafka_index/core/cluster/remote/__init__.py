"""Remote segments: their metadata events and objects in remote storage."""
