"""Hyperparameter search: the types of a search, the algorithms that choose parameters, and the driver."""
