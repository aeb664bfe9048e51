"""Hook that connects Airflow to a training backend."""
