"""What the server would refuse later, or would not notice, said before anything is created. Pure."""
