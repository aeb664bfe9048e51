"""Tracking of TrainJobs as runs, and the registry of their models. Loaded only where a tracking URI is configured."""
