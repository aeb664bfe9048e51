"""A packaged function becomes the command of a container, byte for byte and without a shell."""
