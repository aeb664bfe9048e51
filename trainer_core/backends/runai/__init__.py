"""The runai backend: TrainingWorkloads and DistributedWorkloads of Run:ai."""
