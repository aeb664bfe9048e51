"""What users write: trainers, initializers, templates and options, until they are a request."""
