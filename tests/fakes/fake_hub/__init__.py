"""A stand-in of the HuggingFace Hub for the real huggingface_hub client, reached through ``HF_ENDPOINT``."""

from fake_hub.faults import Fault, cut, held, refused, spoiled
from fake_hub.hub_environment import TOKEN, in_place_of_the_hub
from fake_hub.repositories import Repository
from fake_hub.server import Hub, Seen

__all__ = [
    "TOKEN",
    "Fault",
    "Hub",
    "Repository",
    "Seen",
    "cut",
    "held",
    "in_place_of_the_hub",
    "refused",
    "spoiled",
]
