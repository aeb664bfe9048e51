"""What runs in the training process; standard library only, because nothing else is installed there."""
