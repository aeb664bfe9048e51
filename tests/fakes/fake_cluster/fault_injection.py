"""Doing to a request and its answer what a fault says."""

from __future__ import annotations

import asyncio

from aiohttp import web

from fake_cluster import answers
from fake_cluster.answers import RefusedError
from fake_cluster.faults import OF_REQUEST, Fault


async def spoil(request: web.Request, fault: Fault) -> None:
    """Let a request fail; what happens within its answer is left to who writes that."""
    if fault.in_stream:
        request[OF_REQUEST] = fault
        return
    if fault.status is not None:
        raise answers.of_code(fault.status, fault.retry_after)
    await asyncio.sleep(fault.hang or 0)
    if request.transport is not None:
        request.transport.abort()
    raise RefusedError(500)


async def spoilt(request: web.Request, answer: web.StreamResponse) -> web.StreamResponse:
    """Return an answer as its request's fault leaves it: slow, or half of it; a stream has seen to that itself."""
    fault = request.get(OF_REQUEST)
    if fault is None or not isinstance(answer, web.Response) or not isinstance(answer.body, bytes):
        return answer
    whole = answer.body
    slow = web.StreamResponse(status=answer.status, headers={"Content-Type": "application/json"})
    slow.content_length = len(whole)
    await slow.prepare(request)
    if fault.truncate:
        await slow.write(whole[: len(whole) // 2])
        if request.transport is not None:
            request.transport.abort()
        return slow
    for byte in whole:
        await slow.write(bytes([byte]))
        await asyncio.sleep(fault.drip or 0)
    return slow
