import asyncio
import base64
import datetime as dt
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.common.constant import TIMESTAMP_HEADER
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER

from pmfl.deploy.gate import Gate, as_flower_writes, signed_by
from pmfl.deploy.keys import node_key

FLEET = "/v1/fleet/push-messages"


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Reads a body as Flower does: whole; then answers with its length."""
    body, more = b"", True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ConnectionError
        body += message.get("body", b"")
        more = message.get("more_body", False)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": str(len(body)).encode()})


def ask(
    gate: Gate, path: str, *parts: bytes, headers: dict[str, str] | None = None, peer: str = "127.0.0.1"
) -> tuple[int, int]:
    """The status, and how many parts of the body were taken."""
    sent: list[Any] = []
    left = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
    left.append({"type": "http.request", "body": b"", "more_body": False})
    total = len(left)

    async def receive() -> Any:
        return left.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    given = [(name.lower().encode(), value.encode()) for name, value in (headers or {}).items()]
    scope = {"type": "http", "path": path, "headers": given, "client": (peer, 5000)}
    asyncio.run(gate(scope, receive, send))
    return sent[0]["status"], total - len(left)


@pytest.fixture
def key(tmp_path: Path) -> tuple[ec.EllipticCurvePrivateKey, bytes]:
    public = as_flower_writes(node_key(tmp_path / "key.pem"))
    private = serialization.load_ssh_private_key((tmp_path / "key.pem").read_bytes(), None)
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    return private, public


def signed(key: tuple[ec.EllipticCurvePrivateKey, bytes], age: float = 0.0) -> dict[str, str]:
    stamp = (dt.datetime.now(dt.UTC) - dt.timedelta(seconds=age)).isoformat()
    return {
        FLEET_HTTP_PUBLIC_KEY_HEADER: base64.b64encode(key[1]).decode(),
        TIMESTAMP_HEADER: stamp,
        FLEET_HTTP_SIGNATURE_HEADER: base64.b64encode(key[0].sign(stamp.encode(), ec.ECDSA(hashes.SHA256()))).decode(),
    }


def gate(*keys: bytes, limit: int = 100) -> Gate:
    return Gate(echo, limit=limit, secret="s", keys=frozenset(keys))


def test_a_registered_key_comes_in(key: Any) -> None:
    assert ask(gate(key[1]), FLEET, b"x" * 60, b"y" * 40, headers=signed(key)) == (200, 3)


def test_strangers_are_refused_before_a_byte_of_their_body_is_read(key: Any, tmp_path: Path) -> None:
    other = as_flower_writes(node_key(tmp_path / "other.pem"))
    strange = gate(other)
    assert ask(strange, FLEET, b"x" * 10_000, headers=signed(key)) == (401, 0)
    assert ask(strange, FLEET, b"x" * 10_000) == (401, 0)
    claimed = {**signed(key), FLEET_HTTP_PUBLIC_KEY_HEADER: base64.b64encode(other).decode()}
    assert ask(strange, FLEET, b"x" * 10_000, headers=claimed) == (401, 0)


def test_an_old_signature_is_refused(key: Any) -> None:
    assert ask(gate(key[1]), FLEET, headers=signed(key, age=400.0)) == (401, 0)
    assert ask(gate(key[1]), FLEET, headers=signed(key, age=-60.0)) == (401, 0)


@pytest.mark.parametrize("what", [FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER, TIMESTAMP_HEADER])
@pytest.mark.parametrize("value", ["", "!!", "é", "2026-01-01", base64.b64encode(b"no").decode()])
def test_garbage_in_headers_is_refused(key: Any, what: str, value: str) -> None:
    headers = {name.lower(): given for name, given in signed(key).items()}
    assert signed_by(headers, frozenset({key[1]}))
    assert not signed_by({**headers, what.lower(): value}, frozenset({key[1]}))


def test_a_body_beyond_the_limit_is_cut_off_whatever_its_sender_says(key: Any) -> None:
    honest = {**signed(key), "content-length": "5000"}
    assert ask(gate(key[1]), FLEET, b"x" * 5000, headers=honest) == (413, 0)
    assert ask(gate(key[1]), FLEET, *[b"x" * 60] * 50, headers=signed(key)) == (413, 2)
    assert ask(gate(key[1]), FLEET, headers={**signed(key), "content-length": "-1"}) == (400, 0)


@pytest.mark.parametrize(
    ("path", "headers", "peer", "status"),
    [
        ("/health", {}, "10.0.0.9", 200),
        ("/v1/control/start-run", {"x-pmfl-secret": "s"}, "127.0.0.1", 200),
        ("/v1/control/start-run", {"x-pmfl-secret": "t"}, "127.0.0.1", 401),
        ("/v1/control/start-run", {}, "127.0.0.1", 401),
        ("/v1/control/start-run", {"x-pmfl-secret": "s"}, "10.0.0.9", 403),
        ("/v1/control/start-run", {"x-pmfl-secret": "s", "x-forwarded-for": "10.0.0.9"}, "127.0.0.1", 403),
        ("/v1/runtime/acquire-task", {}, "127.0.0.1", 200),
        ("/v1/runtime/acquire-task", {}, "10.0.0.9", 403),
        ("/docs", {}, "127.0.0.1", 404),
        ("/v1/fleets", {}, "127.0.0.1", 404),
    ],
)
def test_who_may_ask_for_what(path: str, headers: dict[str, str], peer: str, status: int) -> None:
    assert ask(gate(), path, headers=headers, peer=peer)[0] == status


def test_without_keys_any_node_comes_in_and_bodies_are_still_bounded() -> None:
    insecure = Gate(echo, limit=100, secret="s", keys=None)
    assert ask(insecure, FLEET, b"x")[0] == 200
    assert ask(insecure, FLEET, b"x" * 101)[0] == 413


def test_start_and_end_pass_and_websockets_do_not() -> None:
    seen = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["type"])

    around: Any = Gate(app, limit=1, secret="s", keys=None)
    for kind in ("lifespan", "websocket"):
        asyncio.run(around({"type": kind}, None, None))
    assert seen == ["lifespan"]


def test_an_error_of_flowers_own_is_not_hidden() -> None:
    async def broken(scope: Any, receive: Any, send: Any) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        ask(Gate(broken, limit=1, secret="s", keys=None), FLEET)
