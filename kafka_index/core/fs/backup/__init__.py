"""Backup repositories as inputs."""
