"""Kubernetes, as every backend on a cluster sees it: connections, requests, watches, pods, events, logs."""
