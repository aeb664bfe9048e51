"""The TrainJobs page: what the API server of Airflow serves."""
