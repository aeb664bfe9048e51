"""Given what pods and events say, say why a job cannot go on or has failed. Pure."""
