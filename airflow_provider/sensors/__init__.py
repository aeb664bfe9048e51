"""Sensors that wait for TrainJobs."""
