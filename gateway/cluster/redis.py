"""The bus on Redis, or Valkey: publish and subscribe, nothing stored.

Two connections: one publishes, in batches that grow by themselves while an answer is on its way; one listens. Each
second the bus sends itself a beat through both: what does not come back in time is a lost connection, also where no
packet says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections import deque
from typing import TYPE_CHECKING, Any

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from gateway.redact import redact
from gateway.tasks import ended

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.cluster.base import Listener

logger = logging.getLogger(__name__)

BEAT_S = 1.0
SILENCE_S = 3.0
"""A beat that is so late means that the connection is lost; also how long a command to Redis may take."""

QUEUE_BYTES = 32 * 1024 * 1024
"""What may wait to be published; past it messages are lost, as the bus's users expect of it."""

BATCH = 256
FIRST_WAIT_S, LONGEST_WAIT_S = 0.05, 1.0


class RedisBus:
    """A :class:`~gateway.cluster.base.Bus` on the Redis at ``url`` (``redis://``, ``rediss://``, ``unix://``)."""

    def __init__(self, url: str) -> None:
        Redis.from_url(url)  # raises ValueError for what is no address, before anything is started
        self.works = False
        self._url = url
        self._shown = redact(url)
        self._listener: Listener | None = None
        self._channels: set[str] = set()
        self._beat = ""
        self._waiting: deque[tuple[str, bytes, Callable[[], None] | None]] = deque()
        self._waiting_bytes = 0
        self._wake = asyncio.Event()
        self._emptied = asyncio.Event()
        self._heard = 0.0
        self._task: asyncio.Task[None] | None = None

    async def start(self, listener: Listener, channels: list[str]) -> None:
        """Begin to connect, and give the first attempt a moment."""
        self._listener = listener
        self._channels.update(channels)
        self._beat = f"{channels[0]}:beat"
        self._channels.add(self._beat)
        connected = asyncio.Event()
        self._task = asyncio.create_task(self._run(connected), name="bus")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SILENCE_S):
                await connected.wait()

    async def stop(self) -> None:
        """Send what waits, within a second, and disconnect."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                while self.works and self._waiting_bytes:
                    self._emptied.clear()
                    await self._emptied.wait()
        if self._task is not None:
            await ended([self._task])

    # -- using it

    def send(self, channel: str, data: bytes, undelivered: Callable[[], None] | None = None) -> None:
        """See :class:`~gateway.cluster.base.Bus`."""
        if not self.works or self._waiting_bytes > QUEUE_BYTES:
            if undelivered is not None:
                asyncio.get_running_loop().call_soon(undelivered)
            return
        self._waiting.append((channel, data, undelivered))
        self._waiting_bytes += len(data) + 1
        self._wake.set()

    def subscribe(self, channel: str) -> None:
        """See :class:`~gateway.cluster.base.Bus`."""
        self._channels.add(channel)
        self._wake.set()

    def unsubscribe(self, channel: str) -> None:
        """See :class:`~gateway.cluster.base.Bus`."""
        self._channels.discard(channel)
        self._wake.set()

    # -- keeping it

    async def _run(self, first: asyncio.Event) -> None:
        wait = FIRST_WAIT_S
        said = False
        while True:
            # No retries inside: a second attempt could overtake what was sent first.
            client = Redis.from_url(
                self._url,
                socket_timeout=SILENCE_S,
                socket_connect_timeout=SILENCE_S,
                retry=Retry(NoBackoff(), 0),
                single_connection_client=False,
            )
            try:
                await self._serve(client, first)
            except (RedisError, OSError, TimeoutError) as exc:
                if self.works:
                    wait, said = FIRST_WAIT_S, False
                if not said:
                    logger.warning("bus %s: %s; sessions of this node go on, others are out of reach", self._shown, exc)
                    said = True
            finally:
                self._drop()
                with contextlib.suppress(RedisError, OSError, TimeoutError):
                    await client.aclose()
            first.set()
            await asyncio.sleep(wait * random.uniform(0.5, 1.0))
            wait = min(2 * wait, LONGEST_WAIT_S)

    async def _serve(self, client: Redis, first: asyncio.Event) -> None:
        """Connect, and work until something fails."""
        assert self._listener is not None
        pubsub = client.pubsub()
        subscribed = set(self._channels)
        try:
            await pubsub.subscribe(*subscribed)
            confirmed = 0
            while confirmed < len(subscribed):
                message = await pubsub.get_message(timeout=SILENCE_S)
                if message is None:
                    raise TimeoutError("no answer to SUBSCRIBE")
                confirmed += message["type"] == "subscribe"
            await client.publish(self._beat, b"")
            self._heard = asyncio.get_running_loop().time()
            self.works = True
            logger.info("bus %s: connected", self._shown)
            first.set()
            self._listener.restored()
            jobs = [self._read(pubsub), self._write(client, pubsub, subscribed), self._pulse()]
            tasks = [asyncio.create_task(job) for job in jobs]
            try:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            finally:
                await ended(tasks)
        finally:
            with contextlib.suppress(RedisError, OSError, TimeoutError):
                await pubsub.aclose()  # type: ignore[no-untyped-call]

    def _drop(self) -> None:
        """The connection is gone, and what waited with it."""
        waiting, self._waiting, self._waiting_bytes = self._waiting, deque(), 0
        worked, self.works = self.works, False
        self._emptied.set()
        if worked and self._listener is not None:
            self._listener.lost()
        for _, _, undelivered in waiting:
            if undelivered is not None:
                undelivered()

    async def _read(self, pubsub: Any) -> None:
        assert self._listener is not None
        while True:
            message = await pubsub.get_message(timeout=None)
            if message is None or message["type"] != "message":
                continue
            channel = message["channel"].decode()
            if channel == self._beat:
                self._heard = asyncio.get_running_loop().time()
                continue
            try:
                self._listener.received(channel, message["data"])
            except Exception:
                logger.exception("a message on %s could not be used", channel)

    async def _write(self, client: Redis, pubsub: Any, subscribed: set[str]) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            if missing := self._channels - subscribed:
                await pubsub.subscribe(*missing)
                subscribed |= missing
            if surplus := subscribed - self._channels:
                await pubsub.unsubscribe(*surplus)
                subscribed -= surplus
            while self._waiting:
                batch = [self._waiting.popleft() for _ in range(min(BATCH, len(self._waiting)))]
                try:
                    pipeline = client.pipeline(transaction=False)
                    for channel, data, _ in batch:
                        pipeline.publish(channel, data)
                    takers = await pipeline.execute()
                except BaseException:
                    self._waiting.extendleft(reversed(batch))  # so that all of it is reported lost
                    raise
                self._waiting_bytes -= sum(len(data) + 1 for _, data, _ in batch)
                for (_, _, undelivered), count in zip(batch, takers, strict=True):
                    if not count and undelivered is not None:
                        undelivered()
            self._emptied.set()

    async def _pulse(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self.send(self._beat, b"")
            await asyncio.sleep(BEAT_S)
            if loop.time() - self._heard > SILENCE_S:
                raise TimeoutError(f"silent for {SILENCE_S:g} s")
