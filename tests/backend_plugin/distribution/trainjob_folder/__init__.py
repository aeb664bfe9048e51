"""A backend of trainjob-workflows: TrainJobs are folders, and processes of the one that submits them."""
