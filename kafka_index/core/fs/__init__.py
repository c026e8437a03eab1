"""File systems: local disk, object stores, HDFS, and backup repositories as inputs."""
