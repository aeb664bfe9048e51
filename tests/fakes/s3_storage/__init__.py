"""A folder as S3 storage, and a bad day of any storage: what the tests and the benchmark of fetching stand on."""
