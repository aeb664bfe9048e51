"""Request without a trainer → a Job that fetches into a volume. Pure."""
