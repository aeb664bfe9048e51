"""Pods → facts, small enough to keep for ten thousand jobs. Pure."""
