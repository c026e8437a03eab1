"""Repositories of backups as files: runs, their manifests, and pieces of logs joined to segments.

A path such as ``backup+s3://bucket/kafka/@20261120T120000.000Z/orders-0/00000000000000000078.log``
names a file of the data directory that a run stands for: `store`. `manifest` has what the objects
of a repository are called, and what a manifest says.
"""
