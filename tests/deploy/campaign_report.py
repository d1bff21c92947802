"""What a campaign has shown, as a page and a table: python -m tests.deploy.campaign_report OUT docs/results"""

import argparse
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.deploy.campaign import lines
from tests.deploy.faults import KINDS, SERVER

SLACK = 2.0  # seconds that a round may last beyond its deadline

HEAD = """# Faults in real deployments

`make deploy-campaign INJECTIONS={asked}` starts a server and {nodes} nodes as their operators would (certificates and
keys on; every node behind a cable of our own that can be cut), breaks one thing after another at random moments until
each run has ended by itself, and compares the records of both sides. This page holds what there was time for: {faults}
faults of {kinds} kinds; {runs} finished runs of {rounds} rounds on *digits*, deadline {deadline:g} s.

{load}

| kind | injected | client back | with its history | longest round: median, largest | within the deadline + 2 s |
|---|---|---|---|---|---|
"""

FOOT = """
*longest round*: from the fault, or the round completed last, to the next completed round, seen from outside.
For faults of the server it is the time in which the server's processes start again and the round is asked for
anew; a deadline says nothing of that, so the last column is left out there. *with its history*: the client's
first reply after the fault was made with its memory; a corrupted memory cannot be, and is counted below
instead.

| of {runs} runs | |
|---|---|
| ended by themselves, with exit code 0 | {ended} |
| replies counted by servers | {replies} |
| disagreements between the server's record and those of the nodes | {disagreements} |
| runs that left model, graph and card | {results} |
| brought back by supervisors | {restarts} |
| memories corrupted, and reported as lost by the node and in `status` | {noticed} of {corrupted} |

A *disagreement* is a reply counted twice, one counted that no node had sent, an acknowledgement that names
another round than the server has recorded, or a tally that differs from the records. {odd}

The injections one by one are in `deployment.parquet`, the runs in `deployment.json`. Every line was
written at the time; nothing of this campaign is left out but injections into something that was not there at that
moment ({skipped}). What earlier, unfinished campaigns found was corrected before it: docs/decisions/0006.
"""


def page(injections: Sequence[dict[str, Any]], runs: Sequence[dict[str, Any]], asked: int, nodes: int) -> str:
    done = [line for line in injections if "skipped" not in line]
    loads = [line["load"] for line in done]
    under_way = len([line for line in done if line["run"] not in {run["run"] for run in runs}])
    load = (
        f"The machine had 2 cores and other work: its load was {statistics.median(loads):.0f} in the median "
        f"({min(loads):.0f} to {max(loads):.0f}), so times are upper bounds."
        + (f" Of these faults, {under_way} belong to a run that was cut off by our own time." if under_way else "")
    )
    text = HEAD.format(
        asked=asked,
        nodes=nodes,
        faults=len(done),
        kinds=len({line["kind"] for line in done}),
        runs=len(runs),
        rounds=max(run["of"] for run in runs),
        deadline=done[0]["deadline"],
        load=load,
    )
    for kind in KINDS:
        text += _row(kind, [line for line in done if line["kind"] == kind])
    restarts: dict[str, int] = {}
    for run in runs:
        for name, count in run["restarts"].items():
            restarts[name] = restarts.get(name, 0) + count
    corrupted = [line for line in done if line["kind"] == "memory file corrupted"]
    odd = [f"run {run['run']}: {what}" for run in runs for what in run["disagreements"]]
    return text + FOOT.format(
        runs=len(runs),
        ended=sum(run["ended_by_itself"] and run["code"] == 0 for run in runs),
        replies=sum(run["replies"] for run in runs),
        disagreements=sum(len(run["disagreements"]) for run in runs),
        results=sum(len(run["result"]) == 3 for run in runs),
        restarts=", ".join(f"{name} {count} times" for name, count in sorted(restarts.items())) or "nothing",
        noticed=sum(line.get("noticed_after") is not None for line in corrupted),
        corrupted=len(corrupted),
        odd=f"They were: {'; '.join(odd)}." if odd else "There was none.",
        skipped=len(injections) - len(done),
    )


def _row(kind: str, found: Sequence[dict[str, Any]]) -> str:
    if not found:
        return f"| {kind} | 0 | | | | |\n"
    longest = [line["longest_round"] for line in found]
    back, history = (sum(line[word] for line in found) for word in ("client_back", "with_its_history"))
    within = sum(line["longest_round"] <= line["deadline"] + SLACK for line in found)
    told = "-" if kind in SERVER else f"{within} of {len(found)}"
    times = f"{statistics.median(longest):.1f} s, {max(longest):.1f} s"
    remembered = "-" if kind == "memory file corrupted" else f"{history}"
    return f"| {kind} | {len(found)} | {back} | {remembered} | {times} | {told} |\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("to", type=Path)
    parser.add_argument("--injections", type=int, default=20)
    parser.add_argument("--nodes", type=int, default=3)
    given = parser.parse_args()
    injections, runs = lines(given.out / "injections.jsonl"), lines(given.out / "runs.jsonl")
    given.to.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(injections), given.to / "deployment.parquet", compression="zstd")
    (given.to / "deployment.json").write_text(json.dumps(runs, indent=1) + "\n", "utf-8")
    (given.to / "deployment.md").write_text(page(injections, runs, given.injections, given.nodes), "utf-8")


if __name__ == "__main__":
    main()
