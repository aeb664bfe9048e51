"""Operators that run and manage TrainJobs."""
