"""Backend for Kubeflow Trainer v2 on Kubernetes."""

#: URI schemes that Trainer's initializer images support.
SCHEMES = ("hf", "s3", "cache", "pvc")
