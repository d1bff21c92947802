"""Keeps Flower's node in step: one message fetched, its own reply handed in, nothing left over.

Flower's loop fetches a message and then hands in whatever reply comes next. A message that broke off on its way,
because the run was ended at that moment, leaves a task for which the app waits for ever, or a reply that nobody
expects: from then on every reply is handed in one round late.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flwr.common.constant import SubStatus


class Recording:
    """Flower's store of a node, which notes what is put in and taken out meanwhile."""

    def __init__(self, state: Any) -> None:
        self._state = state
        self.tasks, self.messages, self.answered = list[int](), list[str](), set[str]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._state, name)

    def create_task(self, **given: Any) -> Any:
        """As it is, and noted."""
        task = self._state.create_task(**given)
        self.tasks += [] if task is None else [task]
        return task

    def store_message(self, message: Any) -> Any:
        """As it is, and noted."""
        if not message.metadata.reply_to_message_id:
            self.messages.append(message.metadata.message_id)
        return self._state.store_message(message)

    def get_messages_legacy(self, **given: Any) -> Any:
        """As it is, and what they reply to is noted."""
        found = self._state.get_messages_legacy(**given)
        self.answered.update(message.metadata.reply_to_message_id for message in found)
        return found


class Courier:
    """Flower's two steps, in step."""

    def __init__(self, fetch: Callable[..., int | None], hand_in: Callable[..., None]) -> None:
        self._fetch, self._hand_in = fetch, hand_in
        self._owed: str | None = None

    def fetch(self, *, state: Any, **given: Any) -> int | None:
        """Fetch one message; one that did not come whole leaves nothing for the app to wait for."""
        noted = Recording(state)
        run = self._fetch(state=noted, **given)
        self._owed = noted.messages[-1] if noted.messages and run is not None else None
        if run is None:
            if noted.messages:
                state.delete_messages(message_ids=noted.messages)
            for task in noted.tasks:
                state.finish_task(task, sub_status=SubStatus.FAILED, details="the message broke off")
        return run

    def hand_in(self, *, state: Any, **given: Any) -> None:
        """Hand in replies until that to the message which was fetched has been among them."""
        noted = Recording(state)
        self._hand_in(state=noted, **given)
        while self._owed is not None and self._owed not in noted.answered:
            self._hand_in(state=noted, **given)
