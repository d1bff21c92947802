"""What a campaign has shown, as a page and a table.

python -m tests.deploy.campaign_report OUT docs/results [--quiet OTHER]
OUT is where `campaign`, `same_bits`, `storm`, `siege`, `overhead` and `walk` have put what they saw; OTHER is where a
campaign has that ran alone. What was not measured is left out. OUT/note.md, if there is
one, is what whoever ran it has to say.
"""

import argparse
import json
import statistics
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.deploy.campaign import lines
from tests.deploy.faults import AGAIN, KINDS, RESTARTED, SERVER, SLACK, in_time
from tests.deploy.report_parts import PARTS, flow

HEAD = """# Faults in real deployments

`make deploy-campaign INJECTIONS={asked}` starts a server and {nodes} nodes as their operators would (certificates and
keys on; every node behind a cable of our own that can be cut), breaks one thing after another at random moments until
each run has ended by itself, and compares the records of both sides: {faults} faults of {kinds} kinds in {runs} runs
on *digits*, deadline {deadline:g} s.

{load}
"""

TABLE = """
| kind | injected | client back | with its history | longest round: median, largest | within {limit:g} s |
|---|---|---|---|---|---|
"""

FOOT = """
*longest round*: from the fault, or the round completed last, to the next completed round, seen from outside; what may
be lost is the deadline and {slack:g} s. For faults of the server it is the time in which the server's processes start
again and the round is asked for anew. *with its history*: the client's first reply after the fault was made with its
memory; a corrupted memory cannot be, and is counted below instead.

{again}

{missed}
"""

RUNS = """
| of {runs} runs | |
|---|---|
| ended by themselves, with exit code 0 | {ended} |
| replies counted by servers | {replies} |
| replies that came late, were refused, or lost by the network, and not counted | {late}, {refused}, {lost} |
| disagreements between the server's record and those of the nodes | {disagreements} |
| models equal, to the last bit, to the local engine's for the participation that was recorded | {same} |
| runs that left model, graph and card | {results} |
| brought back by supervisors | {restarts} |
| memories corrupted, and reported as lost by the node and in `status` | {noticed} of {corrupted} |

A *disagreement* is a reply counted twice, one counted that no node had sent, an acknowledgement that names
another round than the server has recorded, or a tally that differs from the records. {odd}

The injections one by one are in `deployment.parquet`, all else of this page in `deployment.json`. Every line was
written at the time; nothing of this campaign is left out but injections into something that was not there at that
moment, or whose run was over before its end could be seen ({skipped}). What earlier, unfinished campaigns found was
corrected before it: docs/decisions/0006.
"""


def page(injections: Sequence[dict[str, Any]], runs: Sequence[dict[str, Any]], asked: int, nodes: int) -> str:
    """The campaign itself."""
    done = [line for line in injections if "skipped" not in line]
    corrupted = [line for line in done if line["kind"] == "memory file corrupted"]
    odd = [f"run {run['run']}: {what}" for run in runs for what in run["disagreements"]]
    restarts = sum((Counter(run["restarts"]) for run in runs), Counter[str]())
    deadline = done[0]["deadline"]
    text = HEAD.format(
        asked=asked,
        nodes=nodes,
        faults=len(done),
        kinds=len({line["kind"] for line in done}),
        runs=len(runs),
        deadline=deadline,
        load=loads(done, {run["run"] for run in runs}),
    )
    text += TABLE.format(limit=deadline + SLACK) + "".join(
        row(kind, [line for line in done if line["kind"] == kind]) for kind in KINDS
    )
    text += FOOT.format(slack=SLACK, again=restarted(done), missed=missed(done))
    return text + RUNS.format(
        runs=len(runs),
        ended=sum(run["ended_by_itself"] and run["code"] == 0 for run in runs),
        **{word: sum(run[word] for run in runs) for word in ("replies", "late", "refused", "lost")},
        disagreements=sum(len(run["disagreements"]) for run in runs),
        same=f"{sum(run['same_bits'] for run in runs)} of {len(runs)}",
        results=sum(len(run["result"]) == 3 for run in runs),
        restarts=", ".join(f"{name} {count} times" for name, count in sorted(restarts.items())) or "nothing",
        noticed=sum(line.get("noticed_after") is not None for line in corrupted),
        corrupted=len(corrupted),
        odd=f"They were: {'; '.join(odd)}." if odd else "There was none.",
        skipped=len(injections) - len(done),
    )


def loads(done: Sequence[dict[str, Any]], finished: set[str]) -> str:
    """How busy the machine was."""
    found = [line["load"] for line in done]
    text = (
        f"The machine had 2 cores and other work, and several deployments were broken at once: its load was "
        f"{statistics.median(found):.0f} in the median ({min(found):.0f} to {max(found):.0f}), so times are upper "
        "bounds."
    )
    cut = sum(line["run"] not in finished for line in done)
    text += f" Of these faults, {cut} belong to runs that were cut off by our own time." if cut else ""
    return flow(text)


def row(kind: str, found: Sequence[dict[str, Any]]) -> str:
    """One kind of fault."""
    if not found:
        return f"| {kind} | 0 | | | | |\n"
    longest = [line["longest_round"] for line in found]
    back, history = (sum(line[word] for line in found) for word in ("client_back", "with_its_history"))
    within = sum(line["longest_round"] <= line["deadline"] + SLACK for line in found)
    times = f"{statistics.median(longest):.1f} s, {max(longest):.1f} s"
    remembered = "-" if kind == "memory file corrupted" else f"{history}"
    return f"| {kind} | {len(found)} | {back} | {remembered} | {times} | {within} of {len(found)} |\n"


def restarted(done: Sequence[dict[str, Any]]) -> str:
    """How soon a node that was killed takes part again."""
    again = [line for line in done if line["kind"] in RESTARTED]
    if not again:
        return ""
    text = "After Flower's server has let it in, a node that was killed "
    text += " and ".join(
        f"{what} in {statistics.median(found):.1f} s (median; {max(found):.1f} s at most; within {AGAIN:g} s in "
        f"{sum(seconds <= AGAIN for seconds in found)} of {len(found)} cases)"
        for what, found in (
            ("has trained and replies", [line["replied_after"] for line in again]),
            ("sees that reply counted in a completed round", [line["counted_after"] for line in again]),
        )
    )
    return flow(f"{text}.")


def missed(done: Sequence[dict[str, Any]]) -> str:
    """What nodes' faults cost more than they may, one by one."""
    found = [line for line in done if line["kind"] not in SERVER and not in_time(line)]
    if not found:
        return "No fault of a node has cost more time than that."
    told = "".join(
        f"| {line['kind']} | {line['longest_round']:.1f} s | {line['counted_after']:.1f} s | {line['load']:.0f} |\n"
        for line in found
    )
    return (
        "Faults of nodes that cost more time than they may, with the load at that moment:\n\n"
        f"| kind | longest round | counted again after | load |\n|---|---|---|---|\n{told}"
    ).rstrip()


def calm(injections: Sequence[dict[str, Any]], runs: Sequence[dict[str, Any]]) -> str:
    """The same on a machine that has less to do."""
    done = [line for line in injections if "skipped" not in line]
    if not done:
        return ""
    load = statistics.median(line["load"] for line in done)
    same = all(run["same_bits"] and not run["disagreements"] and run["code"] == 0 for run in runs)
    sound = ", all by themselves, without disagreements and with the same bits" if same else ""
    told = flow(
        f"""{len(done)} faults while the machine had less else to do: its load was {load:.1f} in the median, that of
        the deployments included. Runs that have come to their end: {len(runs)}{sound}."""
    )
    text = f"\n## On a calmer machine\n\n{told}\n"
    text += TABLE.format(limit=done[0]["deadline"] + SLACK)
    text += "".join(row(kind, found) for kind in KINDS if (found := [line for line in done if line["kind"] == kind]))
    return f"{text}\n{restarted(done)}\n".rstrip() + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("to", type=Path)
    parser.add_argument("--quiet", type=Path, default=None)
    parser.add_argument("--injections", type=int, default=20)
    parser.add_argument("--nodes", type=int, default=3)
    given = parser.parse_args()
    folders = {"busy": given.out, **({"quiet": given.quiet} if given.quiet else {})}
    injections = {name: lines(folder / "injections.jsonl") for name, folder in folders.items()}
    runs = {name: lines(folder / "runs.jsonl") for name, folder in folders.items()}
    found: dict[str, Any] = {"runs": runs}
    text = page(injections["busy"], runs["busy"], given.injections, given.nodes)
    note = given.out / "note.md"
    text += f"\n{note.read_text('utf-8')}" if note.exists() else ""
    text += calm(injections.get("quiet", []), runs.get("quiet", []))
    for name, write in PARTS.items():
        file = given.out / f"{name}.json"
        if file.exists():
            found[name] = json.loads(file.read_text("utf-8"))
            text += write(found[name])
    given.to.mkdir(parents=True, exist_ok=True)
    table = [{"machine": name, **line} for name, many in injections.items() for line in many]
    pq.write_table(pa.Table.from_pylist(table), given.to / "deployment.parquet", compression="zstd")
    (given.to / "deployment.json").write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    (given.to / "deployment.md").write_text(text, "utf-8")


if __name__ == "__main__":
    main()
