"""API keys: who may ask, and whose trace is whose."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from surefoot.serve.errors import refusal

# What needs no key: liveness, the playground's page and files (its calls do), the scrape, which holds no user's text.
OPEN = ("/health", "/ready", "/metrics", "/playground/")


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


class Keys:
    """A set of keys, kept as digests.

    Parameters
    ----------
    keys : iterable of str
        Empty: everybody may ask.
    """

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = [_digest(key) for key in keys]

    def __bool__(self) -> bool:
        return bool(self._digests)

    def owner(self, key: str) -> str | None:
        """A name for the owner of ``key`` that does not give the key away; None for a key that is not known.

        Compares with all keys in constant time: how long a refusal takes says nothing about them.
        """
        digest = _digest(key)
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        return digest.hex()[:16] if any(matches) else None


def key_of(headers: Headers) -> str:
    """The key of a request: ``x-api-key``, or ``Authorization: Bearer``."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return headers.get("x-api-key") or (token.strip() if scheme.lower() == "bearer" else "")


class KeyMiddleware:
    """Refuses requests without a known key; notes the owner in ``scope["state"]["owner"]``.

    Parameters
    ----------
    app : ASGI application
    keys, admin : Keys
        Of users, and of whoever may change profiles. An admin's key is also a user's.
    """

    def __init__(self, app: ASGIApp, keys: Keys, admin: Keys) -> None:
        self.app, self._keys, self._admin = app, keys, admin

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One ASGI call."""
        if scope["type"] == "http":
            key = key_of(Headers(scope=scope))
            admin = self._admin.owner(key)
            owner = admin or self._keys.owner(key)
            path = scope["path"]
            if self._keys and owner is None and path != "/" and not path.startswith(OPEN):
                message = "no valid API key. Send it as x-api-key, or as Authorization: Bearer."
                await refusal(path, 401, message, headers={"WWW-Authenticate": "Bearer"})(scope, receive, send)
                return
            state = scope.setdefault("state", {})
            state["owner"] = owner or ""
            state["admin"] = admin is not None or not self._keys
        await self.app(scope, receive, send)
