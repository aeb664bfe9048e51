"""Programs that run beside the training code. Standard library only: nothing else is installed there."""
