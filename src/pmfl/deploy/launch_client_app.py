"""The node's app as a process of ours: `python -m pmfl.deploy.launch_client_app DIR CLIENT PORT`.

Flower starts a new interpreter for every message, which unpacks what the server has sent and imports it. This process
answers one message after the other with the pmfl that is installed here: it starts once, keeps the node's samples
ready between rounds, and never runs code that came from the server.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
import time
from pathlib import Path

import httpx
from flwr.app import Context, Message
from flwr.app.error import Error
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode, SubStatus
from flwr.supercore.constant import TaskType
from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http
from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor, RuntimeVersionHttpInterceptor
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

from pmfl.deploy.launch_server_app import runtime, take_task
from pmfl.deploy.processes import die_with_parent
from pmfl.deploy.settings import NodeFolder

POLL = 0.1  # seconds between two looks whether there is a message
APP = "pmfl.deploy.client_app"


def answer(app: ClientApp, address: str, token: str) -> None:
    """One message: fetch it, have the app answer, hand the answer over. A failing app gives an error, not an end."""
    with RuntimeHttpClient.from_server_address(
        server_address=address,
        insecure=True,
        root_certificates=None,
        interceptors=[RuntimeVersionHttpInterceptor(component_name="pmfl"), RuntimeTokenHttpInterceptor(token)],
    ) as client:
        pulse = HeartbeatSender(make_task_heartbeat_fn_http(client))
        pulse.start()
        try:
            message, context, _, _ = pull_task_input(client)
            reply, details = attempt(app, message, context)
            push_message(client, reply, context)
            status = SubStatus.FAILED if details else SubStatus.COMPLETED
            push_task_output(client=client, context=context, sub_status=status, details=details)
        finally:
            pulse.stop()


def attempt(app: ClientApp, message: Message, context: Context) -> tuple[Message, str]:
    """The app's answer, or what went wrong as one."""
    try:
        return app(message=message, context=context), ""
    except Exception as error:
        logging.getLogger("pmfl").exception("the app failed")
        reason = f"{type(error).__name__}: {error}"
        return Message(Error(code=ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason=reason), reply_to=message), reason


def main(arguments: list[str]) -> None:
    """Answer messages until the supervisor ends."""
    die_with_parent(int(os.environ["PMFL_PARENT"]))
    root, client, port = arguments[:3]
    node = NodeFolder.open(Path(root), int(client))
    address = f"127.0.0.1:{port}"
    app: ClientApp = importlib.import_module(APP).app
    tasks = runtime(address, node.folder / "runtime.secret", None)
    while True:
        token = take_task(tasks, TaskType.CLIENT_APP)
        if token is None:
            time.sleep(POLL)
            continue
        try:
            answer(app, address, token)
        except httpx.HTTPError as error:  # the message broke off on its way; the server will ask again
            logging.getLogger("pmfl").warning("a message could not be answered: %s", error)


if __name__ == "__main__":
    main(sys.argv[1:])
