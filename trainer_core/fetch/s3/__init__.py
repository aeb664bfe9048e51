"""``s3://``: objects below a prefix, on AWS or S3-compatible storage, through obstore."""
