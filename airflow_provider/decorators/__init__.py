"""The ``@task.trainjob`` decorator."""
