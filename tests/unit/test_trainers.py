"""Trainers: what they take, and what they refuse where it is written."""

from __future__ import annotations

import functools

import pytest

from trainer_core.base.secrets import SecretRef
from trainer_core.definition.trainers import BuiltinTrainer, CustomTrainer, CustomTrainerContainer, trainer_from_dict
from trainer_core.model.torchtune import TorchTuneConfig

INDEX = "https://packages.example.com/simple"
BOTH = pytest.mark.parametrize(
    "make",
    [functools.partial(CustomTrainer, "train:main"), functools.partial(CustomTrainerContainer, "train:1.0")],
    ids=["function", "container"],
)


def train(epochs: int = 1) -> int:
    return epochs


def test_arguments_keep_the_order_of_the_reference():
    trainer = CustomTrainer(train, {"epochs": 3}, "image", ["numpy"], [INDEX], 2, {"cpu": 1}, {"A": "b"})
    assert (trainer.func_args, trainer.image, trainer.packages_to_install) == ({"epochs": 3}, "image", ["numpy"])
    assert (trainer.pip_index_urls, trainer.num_nodes) == ([INDEX], 2)
    assert (trainer.resources_per_node, trainer.env) == ({"cpu": 1}, {"A": "b"})


@pytest.mark.parametrize("func", [train, "train:main", "team.models.digits:Trainer.fit", functools.partial(train, 3)])
def test_a_function_is_an_object_or_an_import_path(func):
    assert CustomTrainer(func).func is func


@pytest.mark.parametrize(
    "func", ["train", "train.main", "train:", ":main", "a b:c", "3x:main", "rm -rf /:main", 3, None]
)
def test_a_value_that_is_not_a_function_is_refused(func):
    with pytest.raises(ValueError, match=r"func must be a function or 'package\.module:function', got"):
        CustomTrainer(func)


def test_an_unknown_packaging_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="packaging must be one of source, reference, cloudpickle; got 'zip'"):
        CustomTrainer(train, packaging="zip")


@pytest.mark.parametrize("place", ["/data/r.json", "file:///data/r.json", "{{ var.value.place }}", None])
def test_a_result_uri_is_a_file(place):
    assert CustomTrainer(train, result_uri=place).result_uri == place


@pytest.mark.parametrize("place", ["r.json", "~/r", "s3://bucket/r.json", "file://host/r.json", "file://r.json", "", 3])
def test_a_result_uri_that_training_cannot_write_is_refused(place):
    with pytest.raises(ValueError, match="result_uri must be"):
        CustomTrainer(train, result_uri=place)


def test_function_arguments_are_any_dict_by_name():
    given = {"day": "{{ ds }}", "epochs": "{{ params.epochs }}", "deep": {"a": [1, None]}}
    assert CustomTrainer(train, given).func_args == given


@pytest.mark.parametrize("given", ["{}", [1], {1: "a"}])
def test_function_arguments_that_are_not_a_dict_are_refused(given):
    with pytest.raises(ValueError, match="func_args must"):
        CustomTrainer(train, given)


@BOTH
@pytest.mark.parametrize("field", ["num_nodes", "num_proc_per_node"])
@pytest.mark.parametrize("count", [1, 2**31 - 1, None, "{{ params.nodes }}", "2"])
def test_a_count_is_a_number_or_a_template(make, field, count):
    assert getattr(make(**{field: count}), field) == count


@BOTH
@pytest.mark.parametrize("field", ["num_nodes", "num_proc_per_node"])
@pytest.mark.parametrize("count", [0, -1, True, 1.0, 2**31, [1]])
def test_an_invalid_count_is_refused(make, field, count):
    with pytest.raises(ValueError, match=f"{field} must be a whole number of at least 1, got"):
        make(**{field: count})


@BOTH
@pytest.mark.parametrize("wanted", [{"gpu": 4, "cpu": 5, "memory": "10G"}, {"mig-1g.5gb": 1}, {}, None])
def test_resources_are_kept_unchanged(make, wanted):
    assert make(resources_per_node=wanted).resources_per_node == wanted


@BOTH
@pytest.mark.parametrize("wanted", [{"gpu": 1, "mig-1g.5gb": 1}, {"gpu": -1}, {"disk": 1}, {"cpu": True}, "4"])
def test_invalid_resources_are_refused(make, wanted):
    with pytest.raises(ValueError, match=r"resource|GPU"):
        make(resources_per_node=wanted)


@BOTH
def test_environment_variables_are_strings(make):
    assert make(env={"A": "", "B.c-d": "{{ ds }}"}).env == {"A": "", "B.c-d": "{{ ds }}"}


@BOTH
@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({"A=B": "x"}, "env name 'A=B' is not a variable name"),
        ({"": "x"}, "env name '' is not a variable name"),
        ({"1A": "x"}, "env name '1A' is not a variable name"),
        ({"LR": 0.1}, "env\\['LR'\\] must be a string, got float; put it in quotes"),
        ({"A": None}, "env\\['A'\\] must be a string, got NoneType"),
        ({"TRAINJOB_RESOURCE_INTERVAL": "off"}, "INTERVAL'\\] must be a number of seconds such as '10', .* got 'off'"),
        ({"TRAINJOB_RESOURCE_INTERVAL": "-1"}, "must be a number of seconds"),
        ({"TRAINJOB_RESOURCE_INTERVAL": "inf"}, "must be a number of seconds"),
        ({"TRAINJOB_RESOURCE_INTERVAL": ""}, "must be a number of seconds"),
        ({"A": "x\0y"}, "env\\['A'\\] contains a character"),
        ({"A": "\ud800"}, "env\\['A'\\] contains a character"),
        ({1: "x"}, "env must have strings as keys, got 1"),
        ("A=B", "env must be a dict"),
    ],
)
def test_invalid_environment_variables_are_refused(make, env, message):
    with pytest.raises(ValueError, match=message):
        make(env=env)


@BOTH
def test_an_environment_variable_may_be_a_secret(make):
    assert make(env={"TOKEN": SecretRef("hub", "token")}).env == {"TOKEN": SecretRef("hub", "token")}


def test_a_secret_in_plain_data_has_name_and_key():
    given = {"image": "i", "env": {"TOKEN": {"name": "hub", "key": "token"}}}
    assert trainer_from_dict(given).env == {"TOKEN": SecretRef("hub", "token")}


@BOTH
def test_a_refused_environment_variable_does_not_show_its_value(make):
    with pytest.raises(ValueError, match="env") as refused:
        make(env={"TOKEN": "hunter2\0"})
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    "packages",
    [
        [
            "numpy",
            "a>=1,<2; python_version<'4'",
            "b[c, d]",
            "e [f]~=1",
            "g @ file:///g",
            "h (>1)",
            "i ==1 --hash=sha256:0",
        ],
        ["git+https://example.com/r", "./wheels/a.whl", "/wheels/b.whl", "c.whl", "{{ params.package }}"],
        [],
        None,
    ],
)
def test_packages_are_requirements_of_pip(packages):
    assert CustomTrainer(train, packages_to_install=packages).packages_to_install == packages


@pytest.mark.parametrize("package", ["-r", "--index-url=https://evil.example.com", " -e .", "a\n-r b", "", " ", 3])
def test_an_option_of_pip_is_refused_as_a_package(package):
    with pytest.raises(ValueError, match="packages_to_install"):
        CustomTrainer(train, packages_to_install=["numpy", package])


@pytest.mark.parametrize("package", ["numpy pandas", "numpy, pandas", "[extra]", "==1", "numpy=>1 or so", "a&b"])
def test_what_is_no_requirement_is_refused_before_a_job_exists(package):
    with pytest.raises(ValueError, match=r"is not a package; write one such as 'scikit-learn>=1\.5'"):
        CustomTrainer(train, packages_to_install=[package])


@pytest.mark.parametrize(
    "package", ["x @ https://u:Hunter2@h/x.whl", "git+https://tokenHunter2@h/r", "https://h/x?token=Hunter2"]
)
def test_a_package_with_a_password_is_refused_and_not_quoted(package):
    with pytest.raises(ValueError, match=r"packages_to_install\[1\] contains a URL with a user, password") as refused:
        CustomTrainer(train, packages_to_install=["numpy", package])
    assert "Hunter2" not in str(refused.value)


def test_a_string_of_packages_is_refused():
    with pytest.raises(ValueError, match="packages_to_install must be a list of strings such as"):
        CustomTrainer(train, packages_to_install="numpy")


def test_index_urls_are_read_from_the_environment_when_the_trainer_is_created(monkeypatch):
    monkeypatch.setenv("DEFAULT_PIP_INDEX_URLS", f"{INDEX}, https://mirror.example.com/simple,")
    assert CustomTrainer(train).pip_index_urls == [INDEX, "https://mirror.example.com/simple"]


def test_without_index_urls_the_configuration_of_pip_applies(monkeypatch):
    monkeypatch.delenv("DEFAULT_PIP_INDEX_URLS", raising=False)
    assert CustomTrainer(train).pip_index_urls == []


@pytest.mark.parametrize("url", ["packages.example.com", "--extra", "https://a b", "ftp://example.com", "", None])
def test_an_invalid_index_url_is_refused(url):
    with pytest.raises(ValueError, match=r"pip_index_urls\[0\]"):
        CustomTrainer(train, pip_index_urls=[url])


def test_a_refused_index_url_does_not_show_its_password():
    with pytest.raises(ValueError, match="is not a URL") as refused:
        CustomTrainer(train, pip_index_urls=["user:hunter2@packages.example.com"])
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("image", ["", " ", 3, "a\0b"])
def test_an_invalid_image_is_refused(image):
    with pytest.raises(ValueError, match="image must be a non-empty string"):
        CustomTrainerContainer(image)
    with pytest.raises(ValueError, match="image must be a non-empty string"):
        CustomTrainer(train, image=image)


@pytest.mark.parametrize(
    "image", ["Bad Image", "ghcr.io/Team/train", "train:", "train@sha256:12", "https://ghcr.io/a", "-a"]
)
def test_a_reference_that_no_engine_accepts_is_refused(image):
    for create in (lambda: CustomTrainerContainer(image), lambda: CustomTrainer(train, image=image)):
        with pytest.raises(ValueError, match=r"^image must be \[registry/\]name\[:tag\]\[@digest\]"):
            create()


@pytest.mark.parametrize(
    "image",
    [
        "python",
        "python:3.11-slim",
        "localhost:5000/team/train_v2:1.0",
        "Registry.example/team/a__b-c.d:v1",
        "[::1]:5000/train",
        "ghcr.io/team/train:1.0@sha256:" + "0f" * 32,
        "sha256:" + "0f" * 32,
        "{{ params.image }}",
        "ghcr.io/team/train:{{ ds }}",
    ],
)
def test_a_reference_to_an_image_or_a_template_is_accepted(image):
    assert (CustomTrainerContainer(image).image, CustomTrainer(train, image=image).image) == (image, image)


def test_a_container_trainer_requires_an_image():
    with pytest.raises(ValueError, match="image must be a non-empty string"):
        CustomTrainerContainer(None)


@pytest.mark.parametrize("config", [3, {"epochs": 1}, None])
def test_a_builtin_trainer_requires_the_settings_of_a_recipe(config):
    with pytest.raises(ValueError, match="config must be the settings of a recipe, such as a TorchTuneConfig"):
        BuiltinTrainer(config)


@pytest.mark.parametrize(
    ("data", "trainer"),
    [
        ({"func": "train:main", "num_nodes": 2}, CustomTrainer("train:main", num_nodes=2)),
        ({"func": "train:main", "image": "i"}, CustomTrainer("train:main", image="i")),
        ({"image": "i", "env": {"A": "b"}}, CustomTrainerContainer("i", env={"A": "b"})),
        ({"config": {"epochs": 3}}, BuiltinTrainer(TorchTuneConfig(epochs=3))),
        ({"config": TorchTuneConfig(epochs=3)}, BuiltinTrainer(TorchTuneConfig(epochs=3))),
    ],
)
def test_a_trainer_is_built_from_plain_data(data, trainer):
    assert trainer_from_dict(data) == trainer


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, "trainer must have func .* got no field"),
        ({"fun": "a:b"}, "trainer must have func .* got fun"),
        ({"func": "a:b", "nodes": 2}, "unknown field nodes of CustomTrainer; known are func, func_args"),
        ({"image": "i", "func_args": {}}, "unknown field func_args of CustomTrainerContainer"),
        ({"config": {}, "image": "i"}, "unknown field image of BuiltinTrainer"),
        ({"config": {"epoch": 1}}, "unknown field epoch of TorchTuneConfig"),
        ({"func": "a:b", "num_nodes": 0}, "num_nodes must be"),
    ],
)
def test_plain_data_without_a_trainer_is_refused(data, message):
    with pytest.raises(ValueError, match=message):
        trainer_from_dict(data)
