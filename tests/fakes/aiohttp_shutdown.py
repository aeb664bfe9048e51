"""The end of a server of aiohttp: no connection is left open, for an unclosed socket is a warning in a later test."""

from __future__ import annotations

import asyncio

from aiohttp import web

#: Of the event loop, until a connection that has been accepted is known to the server.
_ROUNDS = 10


async def stop_server(runner: web.AppRunner) -> None:
    """Stop listening, and close all connections of the event loop.

    asyncio loses a connection whose socket it has accepted when the server is closed in the next moment: it cannot be
    attached to the server, and is closed by the garbage collector. So nothing is accepted for a while before. The
    server does not know those whose TLS handshake is not complete either.
    """
    loop = asyncio.get_running_loop()
    for site in runner.sites:
        for listening in site._server.sockets if site._server is not None else ():  # type: ignore[attr-defined]
            loop.remove_reader(listening.fileno())
    for _ in range(_ROUNDS):
        await asyncio.sleep(0)
    await runner.cleanup()
    for left in list(loop._transports.values()):  # type: ignore[attr-defined]
        left.abort()
    for _ in range(_ROUNDS):
        await asyncio.sleep(0)
