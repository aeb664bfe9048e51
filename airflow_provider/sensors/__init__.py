"""Sensors over the training core."""
