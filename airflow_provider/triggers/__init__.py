"""Triggers that wait for TrainJobs."""
