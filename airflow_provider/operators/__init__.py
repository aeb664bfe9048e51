"""Operators over the training core."""
