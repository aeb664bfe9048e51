"""``hf://``: models and datasets of the HuggingFace Hub."""
