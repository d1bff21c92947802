"""`pmfl deploy status`: who is here, when each was last seen, how often each took part, how far the run is."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from pmfl.deploy.journal import read, told
from pmfl.deploy.settings import Deployment
from pmfl.deploy.stopping import running

COLUMNS = ("client", "name", "here", "last seen", "took part", "weight", "late", "refused", "lost")


def overview(root: Path, now: float | None = None) -> dict[str, Any]:
    """Everything `status --json` says."""
    made = Deployment.open(root)
    now = time.time() if now is None else now
    here = running(root)
    status = told(made.status)
    supervisor = read(made.folder)
    state = status.get("state", "waiting") if "server" in here else _without_server(status, supervisor)
    return {
        "folder": str(root),
        "server": made.superlink,
        "state": state,
        "supervisors": here,
        "restarts": supervisor.get("restarts", {}),
        "error": supervisor.get("error", ""),
        "result": str(made.result) if made.result.exists() else None,
        "age": round(now - status["updated"], 1) if "updated" in status else None,
        **{key: status.get(key) for key in ("run", "method", "round", "rounds", "seconds_per_round", "seconds_left")},
        "metrics": status.get("metrics", {}),
        "note": status.get("note", ""),
        "refused": status.get("refused", {}),
        "clients": [_client(given, now, live="server" in here) for given in status.get("clients", [])]
        or [{"id": client.id, "name": client.name, "here": False} for client in made.clients],
    }


def _without_server(status: dict[str, Any], supervisor: dict[str, Any]) -> str:
    if status.get("state") == "done":
        return "done"
    if supervisor.get("state") == "failed":
        return "diverged" if status.get("state") == "diverged" else "failed"
    return "stopped" if supervisor else "not started"


def _client(given: dict[str, Any], now: float, *, live: bool) -> dict[str, Any]:
    seen = given.get("last_seen")
    ago = round(max(0.0, now - seen), 1) if isinstance(seen, (int, float)) else None
    return {**given, "here": bool(given.get("here")) and live, "seen_seconds_ago": ago}


def as_text(found: dict[str, Any]) -> str:
    """The same for people."""
    rounds = f"round {found['round']} of {found['rounds']}" if found["round"] is not None else "no round yet"
    first = f"{found['method'] or 'the run'}: {found['state']}, {rounds}"
    if found["state"] == "running" and found["seconds_per_round"]:
        first += f", {found['seconds_per_round']:.1f} s a round, about {_span(found['seconds_left'])} left"
    lines = [first, f"server {found['server']}: {_processes(found)}"]
    notes = [found["note"]] if found["note"] not in found["error"] else []
    lines += [f"note: {note}" for note in (*notes, found["error"]) if note]
    if found["metrics"]:
        lines.append("  ".join(f"{name} {value:.4g}" for name, value in sorted(found["metrics"].items())))
    table = [COLUMNS, *(_row(client) for client in found["clients"])]
    widths = [max(len(row[i]) for row in table) for i in range(len(COLUMNS))]
    lines += [
        "",
        *("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in table),
    ]
    if found["result"]:
        lines += ["", f"the model is in {found['result']}"]
    return "\n".join(lines)


def _processes(found: dict[str, Any]) -> str:
    text = f"running here: {', '.join(found['supervisors'])}" if found["supervisors"] else "nothing runs here"
    back = ", ".join(f"{name} {count} times" for name, count in found["restarts"].items())
    return f"{text}; brought back: {back}" if back else text


def _row(client: dict[str, Any]) -> tuple[str, ...]:
    ago, weight = client.get("seen_seconds_ago"), client.get("weight")
    return (
        str(client["id"]),
        str(client["name"]),
        "yes" if client["here"] else "no",
        "-" if ago is None else "now" if ago < 5 else f"{_span(ago)} ago",
        f"{client.get('replies', 0)} rounds, {client.get('participation', 0.0):.0%}",
        "-" if weight is None else f"{weight:.4g}",
        *(str(client.get(word, 0)) for word in ("late", "refused", "lost")),
    )


def _span(seconds: float | None) -> str:
    """A length of time in words."""
    if seconds is None:
        return "?"
    for size, word in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {word}"
    return f"{seconds:.0f} s"
