"""A double of the KFP 2.17 backend: drivers, launchers and the object store, for compiled pipelines.

It takes the compiled YAML and parameters, and starts the tasks' own commands as processes. Each try has a fresh file
system. It is written from the sources of kubeflow/pipelines, whose functions are named in docstrings, and not from
what the components of this repository send.

    backend = Backend(folder)
    run = backend.run(Path("pipelines/sweep.yaml"), {"dataset_uri": …})
    assert run.phase == "Succeeded", run.explain()

Behaviours, where they are, and the tests that show them:

==  ============================================================  ==========================  ======================
 #  behaviour                                                     module                      test_kfp_backend_….py
==  ============================================================  ==========================  ======================
 1  output artifact ``executor-logs``, which can be switched off  driver                      artifacts
 2  suffix of the try on its URI and file                         launcher                    artifacts
 3  default root, run prefix, random part, ``/minio`` paths       driver, object_store        artifacts
 4  output URIs outside the prefix fail, unknown schemes pass     launcher, object_store      artifacts
 5  input URIs must be gs, s3, minio or oci                       launcher                    artifacts
 6  fresh file system for each try                                container                   steps
 7  a failed step publishes its log only                          launcher                    artifacts
 8  links and empty folders in uploads                            object_store                artifacts
 9  one component specification for equal containers              api_server                  parameters
10  ``{{$}}`` first, then other placeholders over the JSON        launcher                    parameters
11  numbers are doubles, white space in JSON is random            values                      parameters
12  types are checked and not parsed; STRING takes anything       driver                      parameters
13  null for optional, required and upstream inputs               driver                      parameters
14  the launcher adds component defaults                          launcher                    parameters
15  output parameters are read strictly by type                   values, launcher            parameters
16  executor_output.json is read strictly; metadata are wrapped   values, launcher            artifacts
17  TaskConfig                                                    task_config                 task_config
18  placeholders in resources take text only                      task_config                 task_config
19  retries, their window, the same input                         workflow                    workflow
20  SIGTERM to the group, SIGKILL soon after                      container, workflow         steps
21  ``$$`` and ``$(NAME)`` are expanded twice                     kubelet, driver, launcher   parameters
22  sizes of arguments                                            driver, launcher            parameters
23  placeholders that are the whole constant                      driver                      parameters
24  cache keys, old URIs after a hit                              cache, driver               workflow
25  artifacts in sub-pipelines: one name each, lists shrink       metadata_store              workflow
26  skipped upstream, exit tasks, RUNNING after a kill            workflow, metadata_store    workflow
27  the step waits until its output is closed                     container, launcher         steps
28  non-root user, no capabilities, HOME that is read-only        enter_container             steps
29  Workflows are deleted a day after their end                   backend                     workflow
==  ============================================================  ==========================  ======================

Left out, and refused where a pipeline needs it: CreatePVC and DeletePVC, modelcar sidecars (an ``oci://`` input is an
empty folder), parameter expression selectors, generic ephemeral volumes and emptyDir mounts. The image itself is not
tested here (row 28 for the image: test_kfp_containers.py). Tasks run one after the other: what only shows when two
steps run at the same time is not shown.
"""

from kfp_backend.api_server import InvalidRunError
from kfp_backend.backend import Backend, RunResult
from kfp_backend.container import unsupported
from kfp_backend.objects import WORKFLOW_DEFINITION
from kfp_backend.settings import DEFAULT_ROOT, Installation, Pod
from kfp_backend.workflow import Node, Step

__all__ = [
    "DEFAULT_ROOT",
    "WORKFLOW_DEFINITION",
    "Backend",
    "Installation",
    "InvalidRunError",
    "Node",
    "Pod",
    "RunResult",
    "Step",
    "unsupported",
]
