"""Run:ai's TrainingWorkload as a typed model: every field of its spec, and how each is written on the wire."""
