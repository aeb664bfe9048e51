"""Kubernetes support for all backends that run on a cluster: client, informer, job state, events and logs."""
