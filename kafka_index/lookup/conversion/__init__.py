"""Queries of one format as rows of another: what was read, made what the other's writer takes.

Everything goes by Arrow columns: lines become columns of texts, and columns become lines.
"""
