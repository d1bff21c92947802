"""The part of a deployment that Flower starts on a node, for one message at a time."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from pmfl.engines.flower import pack, unpack

if TYPE_CHECKING:
    from pmfl.deploy.node import Node

FOLDER, CLIENT = "pmfl-dir", "client"  # the keys of Flower's node configuration that say whose node this is

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Take part in a round, or hear that it is over."""
    return reply(message, context)


@app.query()
def query(message: Message, context: Context) -> Message:
    """Say who this is."""
    return reply(message, context)


def reply(message: Message, context: Context) -> Message:
    """The node's answer, in Flower's form."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported: training has one thread
    return Message(pack(answered(unpack(message.content), context.node_config)), reply_to=message)


def answered(data: bytes, config: Any) -> bytes:
    """The answer of the client that the node's configuration names."""
    return _node(str(config[FOLDER]), int(config[CLIENT])).answer(data)


@functools.cache
def _node(root: str, client: int) -> Node:
    """Stays, with its samples and model, for as long as this process does."""
    from pmfl.deploy.node import Node
    from pmfl.deploy.settings import NodeFolder

    return Node(NodeFolder.open(Path(root), client))
