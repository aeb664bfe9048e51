"""Provider metadata, and the modules that its imports load."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import resources

import jsonschema
import pytest

from airflow_provider import get_provider_info, links
from trainer_core.model.backend_names import OWN_BACKENDS
from trainer_core.model.config import config_class


def test_the_provider_info_matches_the_schema_of_airflow():
    schema = json.loads(resources.files("airflow").joinpath("provider_info.schema.json").read_text())
    jsonschema.validate(get_provider_info(), schema)


def test_airflow_lists_the_provider_and_its_connection_type():
    from airflow.providers_manager import ProvidersManager

    manager = ProvidersManager()
    assert "trainjob-workflows" in manager.providers
    assert manager.hooks["trainjob"].hook_name == "TrainJob"


@pytest.mark.parametrize("kind", ["operators", "sensors", "hooks", "triggers"])
def test_every_module_the_provider_names_exists(kind):
    from importlib import import_module

    modules = [module for entry in get_provider_info()[kind] for module in entry["python-modules"]]
    assert modules
    assert all(import_module(module).__all__ for module in modules)


def test_each_connection_field_is_a_setting_of_a_backend():
    connection = get_provider_info()["connection-types"][0]
    fields = dict(connection["conn-fields"])
    assert sorted(fields.pop("backend")["schema"]["enum"]) == sorted(OWN_BACKENDS)
    settings = {name for each in OWN_BACKENDS for name in config_class(each).model_fields}
    assert fields.keys() <= settings | set(links.URL_FIELDS)
    assert "client_configuration" not in fields


_COST = """
import json
import sys
import airflow.sdk
from airflow.sdk import BaseOperator, BaseSensorOperator, BaseHook, XComArg
before = set(sys.modules)
import airflow_provider.operators.trainjob, airflow_provider.sensors.trainjob
operators = sorted(set(sys.modules) - before)
import airflow_provider.assets
loaded = sorted(sys.modules)
import airflow_provider.operators.search
searches = sorted(set(sys.modules) - set(loaded))
print(json.dumps({"operators": operators, "all": loaded, "searches": searches}))
"""


@pytest.fixture(scope="module")
def loaded():
    """Modules that importing the operators loads, and modules that a DAG file with model Assets loads."""
    command = [sys.executable, "-W", "ignore", "-c", _COST]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def packages(names):
    return {name.partition(".")[0] for name in names}


def test_importing_the_operators_loads_no_client_library(loaded):
    heavy = {
        "kubernetes",
        "kubernetes_asyncio",
        "docker",
        "torch",
        "huggingface_hub",
        "boto3",
        "kfp",
        "fastapi",
        "psutil",
    }
    assert heavy.isdisjoint(packages(loaded["operators"]))
    assert "airflow.triggers.base" not in loaded["operators"]
    assert not [name for name in loaded["operators"] if name.startswith("trainer_core.tracking")]


def test_only_a_search_loads_the_modules_of_searches_and_parsing_one_loads_no_driver_and_no_optuna(loaded):
    of_searches = [
        name for name in loaded["all"] if "search" in name and name.startswith(("trainer_core", "airflow_pr"))
    ]
    assert of_searches == []
    assert "optuna" not in packages([*loaded["all"], *loaded["searches"]])
    assert {"trainer_core.search.driver", "trainer_core.search.decisions"}.isdisjoint(loaded["searches"])


def test_operators_need_no_openlineage(loaded):
    assert "airflow_provider.lineage_facets" not in loaded["all"]


def test_a_dag_file_with_model_assets_imports_no_client_library(loaded):
    assert {"torch", "kubernetes", "openlineage", "pytest", "fastapi"}.isdisjoint(packages(loaded["all"]))


def test_get_provider_info_imports_nothing():
    program = (
        "import sys; import airflow_provider; airflow_provider.get_provider_info(); print('airflow' in sys.modules)"
    )
    answer = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert answer.strip() == "False"
