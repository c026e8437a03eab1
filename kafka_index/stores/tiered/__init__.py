"""The objects of tiered storage as segments: their layouts, manifests, chunks and encryption.

A path such as ``tiered+aiven+s3://bucket/orders-ID/0/SEGMENT/00000000000000000000.log`` names the
log of a remote segment, and the index files of that segment are its siblings: `layout`.
"""
