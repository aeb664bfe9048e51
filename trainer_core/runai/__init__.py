"""Typed model of Run:ai's TrainingWorkload (``run.ai/v2alpha1``): the fields of its spec and their wire format."""
