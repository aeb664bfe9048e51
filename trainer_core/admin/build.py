"""Runtimes from parameters. Pure."""
