"""The local backend: processes on this machine."""
