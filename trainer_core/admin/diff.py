"""How two runtimes differ, and what a server would refuse to change. Pure."""
