"""What is wrong with a runtime, without a server. Pure."""
