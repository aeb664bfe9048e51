"""The debug backend: the calling process itself."""
