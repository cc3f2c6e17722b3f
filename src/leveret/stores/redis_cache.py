"""RedisDictCache: documents kept in Redis for a while, for whoever reads them again soon."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from leveret.core.errors import ConfigError, MissingExtra
from leveret.core.redaction import redact

try:
    from redis.asyncio import Redis
    from redis.exceptions import RedisError
except ImportError as error:
    raise MissingExtra("Redis needs redis, which is not installed: pip install 'leveret[redis]'") from error

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Seconds that a cache gets for an answer: it is there to be quick, and the store knows everything.
_PATIENCE = 1.0


class RedisDictCache:
    """Objects that JSON carries, by key, in Redis. Every failure is raised; `CachedDocumentStore` makes it a warning.

    Args:
        client: one of `redis.asyncio`; it stays the caller's.
        key_prefix: stands in front of every key.

    Example:
        cache = RedisDictCache(redis.asyncio.from_url("redis://localhost:6379/0"))
        await cache.set("retries:a", {"retry_key": "a"}, ttl_seconds=3600)
        await cache.get("retries:a")  # {'retry_key': 'a'}
    """

    def __init__(self, client: Redis, *, key_prefix: str = "leveret:") -> None:
        self._client = client
        self._prefix = key_prefix
        self._own_client = False

    @classmethod
    def at(cls, url: str, *, key_prefix: str = "leveret:") -> RedisDictCache:
        """One with a client of its own, which `close` closes.

        Raises:
            ConfigError: redis cannot read the URL.
        """
        try:
            client: Redis = Redis.from_url(url, socket_timeout=_PATIENCE, socket_connect_timeout=_PATIENCE)
        except (ValueError, RedisError) as error:
            raise ConfigError(
                f"the cache URL {redact(url)} cannot be used by redis ({type(error).__name__}): see its options"
            ) from None
        cache = cls(client, key_prefix=key_prefix)
        cache._own_client = True
        return cache

    async def get(self, key: str) -> dict[str, Any] | None:
        """What lies under *key*, None where nothing does, or nothing that can be read."""
        text = await self._client.get(self._named(key))
        if text is None:
            return None
        try:
            value = json.loads(text)
        except ValueError:
            return None
        return value if isinstance(value, dict) else None

    async def set(self, key: str, value: Mapping[str, Any], *, ttl_seconds: float) -> None:
        """Keep *value* under *key* for so many seconds."""
        await self._client.set(self._named(key), json.dumps(value), px=max(1, round(ttl_seconds * 1000)))

    async def delete(self, key: str) -> None:
        """Forget what lies under *key*."""
        await self._client.delete(self._named(key))

    async def close(self) -> None:
        """Close the client where it is the cache's own. Idempotent."""
        if self._own_client:
            await self._client.aclose()

    def _named(self, key: str) -> bytes:
        return (self._prefix + key).encode("utf-8", "surrogatepass")
