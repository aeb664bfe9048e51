"""Tests that share one complete Airflow: starting one takes longer than most of them."""
