"""Fetches datasets and models from ``hf://``, ``s3://`` and ``file://`` URIs into a folder, completely or not at all.

`source` defines what a source is, `registry` finds the source of a URI, `cache` stores fetched files, and `program` is
the program of an initializer step. The module of each scheme imports its client library on first use. This package
imports no backend.
"""
