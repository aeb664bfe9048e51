"""What a server answers, as an error that says what to do. Pure."""
