"""What stands before Flower's server: a stranger's request is refused before its body is read, and no body is too big.

Flower serves three interfaces on one port. Nodes need the fleet's; control (which starts programs) and runtime (which
the app on the server's own machine uses) are for this machine alone, and control asks for the supervisor's secret.
"""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import hmac
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.common.constant import SYSTEM_TIME_TOLERANCE, TIMESTAMP_HEADER, TIMESTAMP_TOLERANCE
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.primitives.asymmetric import public_key_to_bytes

from pmfl.deploy.settings import is_loopback

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

SECRET_HEADER = "x-pmfl-secret"
_FORWARDED = ("forwarded", "x-forwarded-for")


class Gate:
    """An ASGI application around Flower's. ``keys``: the public keys that may speak; None: any (insecure)."""

    def __init__(self, app: App, *, limit: int, secret: str, keys: frozenset[bytes] | None) -> None:
        self.app, self.limit, self.secret, self.keys = app, limit, secret, keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One connection, as ASGI has it."""
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        if scope["type"] != "http":
            return None
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        status = self.refusal(scope["path"], headers, (scope.get("client") or ("", 0))[0])
        if status:
            return await _answer(send, status)
        return await self._bounded(scope, receive, send)

    def refusal(self, path: str, headers: dict[str, str], peer: str) -> int:
        """The status a request is refused with; 0: it may go on."""
        if path == "/health":
            return 0
        length = headers.get("content-length", "0")
        if not length.isdigit():
            return 400
        if path.startswith("/v1/fleet/"):
            if self.keys is not None and not signed_by(headers, self.keys):
                return 401
        elif not path.startswith(("/v1/control/", "/v1/runtime/")):
            return 404
        elif not is_loopback(peer) or any(name in headers for name in _FORWARDED):
            return 403
        elif path.startswith("/v1/control/") and not hmac.compare_digest(
            headers.get(SECRET_HEADER, "").encode(), self.secret.encode()
        ):
            return 401
        return 413 if int(length) > self.limit else 0

    async def _bounded(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the body through while it is within bounds: a sender may say one length and send another, or none."""
        seen, over, begun = 0, False, False

        async def counted() -> Message:
            nonlocal seen, over
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > self.limit:
                over = True
                return {"type": "http.disconnect"}
            return message

        async def kept(message: Message) -> None:
            nonlocal begun
            if not over:
                begun = True
                await send(message)

        try:
            await self.app(scope, counted, kept)
        except Exception:
            if not over:
                raise
        if over and not begun:
            await _answer(send, 413)


def signed_by(headers: dict[str, str], keys: frozenset[bytes]) -> bool:
    """Whether a request carries a fresh signature by one of these keys, as Flower's nodes make it."""
    try:
        key = base64.b64decode(headers[FLEET_HTTP_PUBLIC_KEY_HEADER.lower()], validate=True)
        signature = base64.b64decode(headers[FLEET_HTTP_SIGNATURE_HEADER.lower()], validate=True)
        stamp = headers[TIMESTAMP_HEADER.lower()]
        age = (dt.datetime.now(dt.UTC) - dt.datetime.fromisoformat(stamp)).total_seconds()
        if key not in keys or not -SYSTEM_TIME_TOLERANCE < age < TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE:
            return False
        public = serialization.load_pem_public_key(key)
        assert isinstance(public, ec.EllipticCurvePublicKey)
        public.verify(signature, stamp.encode("ascii"), ec.ECDSA(hashes.SHA256()))
    except (KeyError, ValueError, TypeError, binascii.Error, InvalidSignature):
        return False
    return True


def as_flower_writes(openssh: str) -> bytes:
    """A public key of deploy.toml in the form that requests carry."""
    key = serialization.load_ssh_public_key(openssh.encode())
    assert isinstance(key, ec.EllipticCurvePublicKey)
    return public_key_to_bytes(key)


async def _answer(send: Send, status: int) -> None:
    headers = [(b"content-length", b"0"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b""})
