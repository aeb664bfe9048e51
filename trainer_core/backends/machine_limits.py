"""How many processes a TrainJob may have on one machine."""

from __future__ import annotations

from trainer_core.errors import UnsupportedError

__all__ = ["MAX_PROCESSES", "check_process_count"]

#: Processes of all nodes. Each takes tens of megabytes before the training starts.
MAX_PROCESSES = 1000


def check_process_count(num_nodes: int, num_processes: int) -> None:
    """Check the number of processes of a TrainJob whose nodes all run on this machine."""
    if num_nodes * num_processes > MAX_PROCESSES:
        raise UnsupportedError(
            f"num_nodes={num_nodes} with {num_processes} processes each is more than one machine runs; use at most "
            f"{MAX_PROCESSES} processes, or a backend on a cluster"
        )
