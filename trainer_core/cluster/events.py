"""Events of both APIs → what happened, oldest first. Pure."""
