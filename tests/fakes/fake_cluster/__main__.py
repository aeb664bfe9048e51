"""A cluster as a separate process, for benchmarks: prints its URL, and ends when its input does.

Its token is `gate.TOKEN`; what a test would do to a cluster, another process does over HTTP, status included.
"""

from __future__ import annotations

import argparse
import sys

from fake_cluster.cluster import Cluster


def main() -> None:
    parser = argparse.ArgumentParser(prog="fake_cluster", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="where to listen; 0 for any free port")
    parser.add_argument("--keep", type=int, default=100_000, help="how many changes watches can go back")
    parser.add_argument("--namespace", action="append", default=[], help="a namespace to create; may be repeated")
    parser.add_argument("--bare", action="store_true", help="only a server: no schemas, no controllers, no processes")
    arguments = parser.parse_args()
    with Cluster(
        port=arguments.port,
        keep=arguments.keep,
        namespaces=arguments.namespace,
        controllers=not arguments.bare,
        trainer=None if arguments.bare else "2.3",
    ) as cluster:
        print(cluster.url, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
