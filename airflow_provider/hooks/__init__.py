"""Hooks over the training core."""
