"""Airflow plugin with the TrainJobs page."""
