"""The component that fetches a pre-trained model."""

from kfp import dsl

from kfp_components.initialize_dataset import make_initialize_component

__all__ = ["initialize_model"]

initialize_model = make_initialize_component("model", "pretrained", dsl.Model)
