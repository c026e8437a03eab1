"""The real command line in processes of its own, over real files, until they are killed."""
