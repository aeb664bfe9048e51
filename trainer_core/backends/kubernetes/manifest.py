"""Request → TrainJob, exactly as it is sent. Pure."""
