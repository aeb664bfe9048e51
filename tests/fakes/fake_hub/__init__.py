"""A stand-in of the HuggingFace Hub for the real huggingface_hub client, reached through ``HF_ENDPOINT``."""

from fake_hub.faults import Fault, cut, held, refused, spoiled
from fake_hub.repositories import Repository
from fake_hub.server import Hub, Seen

__all__ = ["Fault", "Hub", "Repository", "Seen", "cut", "held", "refused", "spoiled"]
