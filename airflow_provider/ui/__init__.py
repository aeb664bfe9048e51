"""The TrainJobs page of Airflow's UI."""
