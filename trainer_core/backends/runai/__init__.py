"""Run:ai: TrainingWorkload and DistributedWorkload."""
