from types import SimpleNamespace as Thing
from typing import Any

from pmfl.deploy.courier import Courier


class Store:
    """What Flower's node keeps."""

    def __init__(self) -> None:
        self.said: list[Any] = []
        self.replies: list[Any] = []

    def create_task(self, **given: Any) -> int | None:
        task: int | None = given["task"]
        return task

    def store_message(self, message: Any) -> None:
        self.said.append(("kept", message.metadata.message_id))

    def delete_messages(self, message_ids: list[str]) -> None:
        self.said.append(("deleted", message_ids))

    def finish_task(self, task: int, sub_status: str, details: str) -> None:
        self.said.append(("finished", task, sub_status))

    def get_messages_legacy(self, **given: Any) -> list[Any]:
        found, self.replies = self.replies[:1], self.replies[1:]
        return found

    name = "a store"


def message(name: str, reply_to: str = "") -> Any:
    return Thing(metadata=Thing(message_id=name, reply_to_message_id=reply_to))


def fetching(*, run: int | None, task: int | None = 7) -> Any:
    def fetch(*, state: Any, messages: tuple[Any, ...]) -> int | None:
        assert state.name == "a store"
        state.create_task(task=task)
        for one in messages:
            state.store_message(one)
        return run

    return fetch


def handing(sent: list[str]) -> Any:
    def hand_in(*, state: Any) -> None:
        sent.extend(one.metadata.message_id for one in state.get_messages_legacy(is_reply=True))

    return hand_in


def test_a_message_that_broke_off_leaves_nothing_behind() -> None:
    store = Store()
    assert Courier(fetching(run=None), handing([])).fetch(state=store, messages=(message("m"),)) is None
    assert store.said == [("kept", "m"), ("deleted", ["m"]), ("finished", 7, "failed")]


def test_nothing_fetched_nothing_undone() -> None:
    store = Store()
    assert Courier(fetching(run=None, task=None), handing([])).fetch(state=store, messages=()) is None
    assert store.said == []


def test_the_reply_that_is_owed_is_handed_in_after_those_that_nobody_expects() -> None:
    store, sent = Store(), list[str]()
    courier = Courier(fetching(run=5), handing(sent))
    assert courier.fetch(state=store, messages=(message("m"),)) == 5
    store.replies = [message("old", "earlier"), message("mine", "m"), message("next", "later")]
    courier.hand_in(state=store)
    assert sent == ["old", "mine"]
    assert store.said == [("kept", "m")]


def test_an_answer_that_the_node_gives_itself_is_handed_in_at_once() -> None:
    store, sent = Store(), list[str]()
    courier = Courier(fetching(run=5), handing(sent))
    courier.fetch(state=store, messages=(message("no", "m"),))
    store.replies = [message("no", "m")]
    courier.hand_in(state=store)
    assert sent == ["no"]
