"""What runs in the container of every component; imports nothing of kfp."""
