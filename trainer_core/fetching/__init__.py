"""Datasets and models from where they lie into a folder: all of it or nothing. Runs in a process of its own.

`source` says what a source is, `store` keeps what was fetched, `program` is what an initializer step runs; each kind
of source is a module that imports its library when it is used. Nothing here knows a backend.
"""
