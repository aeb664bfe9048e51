"""Decorators over the training core."""
