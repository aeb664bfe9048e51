"""Decisions about a TrainJob over its life: adoption, wait state, diagnosis. Pure functions."""
