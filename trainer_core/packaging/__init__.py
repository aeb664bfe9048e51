"""Package a training function: its source, arguments and command line."""
