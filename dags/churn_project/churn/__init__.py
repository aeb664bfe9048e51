"""Predicts which customers leave: an example of a project whose code travels with its job."""
