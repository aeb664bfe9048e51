"""TrainingRuntimes of a cluster → what they offer. Pure."""
