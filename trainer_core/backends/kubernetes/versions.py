"""What a server of a given version can be told, and how. Pure."""
