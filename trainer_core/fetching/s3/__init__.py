"""s3://: objects below a prefix, of AWS or of any storage that speaks its language, through obstore."""

from trainer_core.fetching.s3.bucket import S3Source, source

__all__ = ["S3Source", "source"]
