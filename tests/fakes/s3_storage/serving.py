"""An aiohttp application on a free port of this machine, in a thread of this process."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp import web
from aiohttp_shutdown import stop_server


@contextmanager
def served(app: web.Application, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1") -> Iterator[str]:
    loop = asyncio.new_event_loop()
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0)
    loop.run_until_complete(runner.setup())
    site = web.TCPSite(runner, host, 0, ssl_context=tls)
    loop.run_until_complete(site.start())
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield f"{'https' if tls else 'http'}://{host}:{runner.addresses[0][1]}"
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.run_until_complete(stop_server(runner))
        loop.close()
