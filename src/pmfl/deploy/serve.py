"""The server's side of a deployment: an ordinary run whose clients are machines, saved after every round.

A round is saved before the next ask says that its replies were counted. Killed anywhere, the server goes on from the
last round it has saved, and asks again what was under way: to the same weights, counts and history.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from pmfl.core.files import replacing
from pmfl.deploy.node import described
from pmfl.deploy.settings import Deployment
from pmfl.deploy.status import Status
from pmfl.engines.remote import Clock, Link, RemoteEngine, Terms, TooFew
from pmfl.errors import Diverged, EngineError, PmflError, StoreError
from pmfl.study.play import claimed, note_of, row_of
from pmfl.study.run import Run, State
from pmfl.study.seal import seal
from pmfl.study.spec import RunSpec
from pmfl.study.store import Record, Store, storing
from pmfl.world.datasets import Dataset
from pmfl.world.live import Tally

STUDY = "deployment"
GOODBYE = 10.0  # seconds for telling nodes that the run is over


class LiveRun(Run):
    """A run on machines: who takes part is observed, and what is known of them is saved with it."""

    engine: RemoteEngine

    def __init__(
        self,
        spec: RunSpec,
        *,
        link: Link,
        terms: Terms,
        folder: Path | None = None,
        clock: Clock | None = None,
        watch: Callable[[RemoteEngine], None] = lambda engine: None,
        dataset: Dataset | None = None,
    ) -> None:
        _possible(spec, terms)

        def build(rule: Any, model: Any, population: Any, *, memories: Any, **given: Any) -> RemoteEngine:
            clients = spec.data.clients
            return RemoteEngine(
                rule,
                model,
                population,
                link=link,
                terms=terms,
                clients=clients,
                memories=memories,
                clock=clock,
                watch=watch,
            )

        super().__init__(spec, folder=folder, dataset=dataset, build=build)
        words: dict[str, Any] = {
            "run": f"{spec.run_id}-{_birth(folder)}",
            "spec": plain(spec),
            "data": described(self.world.dataset),
        }
        if spec.evaluation.deviation:
            words["updates"] = True
        self.engine.terms = replace(terms, words=words)
        tally = self.state.pattern
        assert isinstance(tally, Tally)
        self.engine.tally = Tally(*(numbers.clone() for numbers in tally))
        observed = replace(self.world.pattern, row=lambda state, t: (self.engine.present(), state))
        self.world = self.world._replace(pattern=observed)

    def _play(self) -> Record:
        while True:
            try:
                record = super()._play()
            except TooFew:
                continue
            saved = Tally(*(numbers.clone() for numbers in self.engine.tally))
            self.state = State(self.state.server, saved)
            return record


def serve(deployment: Deployment, link: Link, *, clock: Clock | None = None) -> dict[str, Any]:
    """Play the rounds that are left, into the deployment's results; returns the summary of the finished run."""
    spec, server = deployment.spec, deployment.server
    with storing(deployment.results):
        deployment.results.mkdir(parents=True, exist_ok=True)
    store, run_id = Store(deployment.results, create=True), spec.run_id
    store.add(row_of(spec, STUDY))
    with claimed(store, run_id) as mine:
        if not mine:
            raise StoreError(
                f"{deployment.results}: another process is playing this deployment",
                hint="`pmfl deploy status` shows it, `pmfl deploy stop` ends it",
                code="R130",
            )
        if not store.is_done(run_id):
            status = Status(deployment.status, spec, [client.name for client in deployment.clients])
            terms = Terms(server.deadline, server.min_replies, server.norm_bound)
            run = LiveRun(spec, link=link, terms=terms, folder=store.running(run_id), clock=clock, watch=status.watch)
            try:
                _play(store, run, status)
            except PmflError as error:
                status.note = error.message
                status.write(run.engine, "diverged" if isinstance(error, Diverged) else "failed")
                store.mark(run_id, status=status.state, note=note_of(error))
                raise
            finally:
                run.close()
        store.tidy(run_id)
        row = store.run(run_id)
        store.close()
        return {"run_id": run_id, "t": row.t, "model_sha256": row.model_sha256, "metrics": row.metrics}


def _play(store: Store, run: LiveRun, status: Status) -> None:
    run_id = run.spec.run_id
    resumed = store.run(run_id).resumed + (run.t > 0)
    store.forget(run_id, from_t=run.t)
    store.mark(run_id, status="running", resumed=resumed, t=run.t, note="")
    status.t = run.t
    status.write(run.engine)
    for record in run:
        store.write(run_id, [record], t=run.t, seconds=run.seconds)
        run.save()
        importance = run.method.weigh.importance(run.state.server.weigh)
        status.played(run.t, dict(record.values), importance, run.engine)
    summary = seal(store, run_id, run.spec, run.w, {"t": run.t, "seconds": run.seconds, "resumed": resumed, "note": ""})
    store.mark(run_id, status="done", t=summary["t"], seconds=summary["seconds"])
    run.engine.farewell(run.t, min(GOODBYE, run.engine.terms.deadline))
    status.write(run.engine, "done")


def plain(spec: RunSpec) -> dict[str, Any]:
    """A specification for nodes: what is not set is left out, since wires have no place for it."""

    def without(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: without(inner) for key, inner in value.items() if inner is not None}
        return value

    found: dict[str, Any] = without(spec.model_dump(mode="json"))
    return found


def _possible(spec: RunSpec, terms: Terms) -> None:
    """Refuse what machines cannot do, before any of them is asked."""
    engine, clients = spec.engine, spec.data.clients
    if (engine.kind, engine.lanes, engine.device) != ("local", 1, "cpu"):
        raise EngineError(
            f"[study.engine] has kind = {engine.kind}, lanes = {engine.lanes}, device = {engine.device}",
            hint="every client is a machine of its own here: leave out all of it but dtype, memory and memory_gb",
            code="E160",
        )
    if terms.min_replies > clients:
        raise EngineError(
            f"min_replies = {terms.min_replies}, and there are {clients} clients",
            hint="a round would wait for ever: lower [server] min_replies",
            code="E160",
        )


def _birth(folder: Path | None) -> str:
    """Tells this run from another with the same question; drawn once, and gone with the run's folder."""
    file = folder / "birth" if folder else None
    if file is not None and file.is_file():
        return file.read_text("utf-8")
    drawn = secrets.token_hex(4)
    if file is not None:
        with storing(file):
            file.parent.mkdir(parents=True, exist_ok=True)
            with replacing(file) as beside:
                beside.write_text(drawn, "utf-8")
    return drawn
