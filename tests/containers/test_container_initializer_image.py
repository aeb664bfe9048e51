"""A container job whose data the project's initializer image fetches from S3 over the network."""

from __future__ import annotations

import built_image
import container_engine
import pytest

from trainer_core import CustomTrainer, Initializer, Name, S3DatasetInitializer

pytestmark = [
    # An image is built.
    # The docker library leaves the sockets of streams to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
KEYS = {"access_key_id": "a", "secret_access_key": "a-secret-key"}


@pytest.fixture(scope="module")
def image():
    with built_image.engine() as engine:
        yield built_image.built(engine, "trainjob-dataset-initializer", "deploy/initializer/Dockerfile", "dataset")


@pytest.fixture
def storage():
    """URL of an S3 server on this machine with a bucket ``digits``, as containers reach it."""
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="0.0.0.0", port=0, verbose=False)  # noqa: S104 -- containers connect from another network
    server.start()
    _, port = server.get_host_and_port()
    names = {f"aws_{name}": value for name, value in KEYS.items()}
    client = boto3.client("s3", endpoint_url=f"http://127.0.0.1:{port}", region_name="us-east-1", **names)
    client.create_bucket(Bucket="digits")
    client.put_object(Bucket="digits", Key="train/digits.csv", Body=b"1,2")
    yield f"http://{container_engine.get_own_address()}:{port}"
    client.close()
    server.stop()


def reads():
    from trainer_core import dataset_path

    return (dataset_path() / "digits.csv").read_text()


@pytest.mark.deep
def test_training_reads_data_that_the_initializer_image_fetched(sandbox, image, storage):
    client = sandbox.client(dataset_initializer_image=image)
    data = S3DatasetInitializer("s3://digits/train", endpoint=storage, **KEYS)
    client.train(
        runtime="python",
        trainer=CustomTrainer(func=reads),
        initializer=Initializer(dataset=data),
        options=[Name("job")],
    )
    outcome = client.wait("job")
    assert outcome.result == "1,2", outcome.diagnosis
