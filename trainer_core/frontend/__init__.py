"""What the command, Airflow and Kubeflow Pipelines share: definition files, tables, checks."""
