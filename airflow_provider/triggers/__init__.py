"""Triggers over the training core."""
