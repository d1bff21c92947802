"""The parts of the results page beside the campaign: what one command each has measured."""

import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

WIDTH = 120  # of a paragraph
Part = Callable[[Any], str]
NAMES = {
    "app": "app",
    "superlink": "Flower's server",
    "supervisor": "supervisor",
    "database": "Flower's database, on disk",
}


def same_bits(found: Sequence[Mapping[str, Any]]) -> str:
    """Methods through real processes."""
    text = """
## The same bits

`python -m tests.deploy.same_bits OUT`: three nodes that are always there for 10 rounds, through real processes, keys
and disks, and the local engine with one lane.

| method | rounds | replies of each node | `model_sha256` of the deployment | equal |
|---|---|---|---|---|
"""
    for one in found:
        replies = ", ".join(map(str, one["replies"]))
        equal = "yes" if one["deployed"] == one["simulated"] else f"NO: {one['simulated'][:16]}"
        text += f"| {one['method']} | {one['rounds']} | {replies} | `{one['deployed'][:16]}…` | {equal} |\n"
    return text


def storm(found: Mapping[str, Any]) -> str:
    """Nodes that come and go in every round."""
    told = flow(
        f"""`python -m tests.deploy.storm OUT`: {found["nodes"]} nodes, of which {found["share_killed"]:.0%} are killed
        and started again in every round, for {found["stormed"]} of {found["rounds"]} rounds; deadline
        {found["deadline"]:g} s, at least {found["min_replies"]} replies a round. The load was
        {found["load_median"]:.0f} in the median ({found["load_most"]:.0f} at most), much of it of nodes that start."""
    )
    text = f"""
## A storm

{told}

| | |
|---|---|
| kills | {found["kills"]} |
| ended by itself, without a hang | {_yes(found["ended_by_itself"] and not found["hung"])} |
| a round: median, longest | {found["round_median"]:.1f} s, {found["round_most"]:.1f} s |
| clients in a round: mean, least | {found["took_part_mean"]:.1f}, {found["took_part_least"]} |
| disagreements between the records of both sides | {len(found["disagreements"])} |
| weights x_k equal to the rule applied to the observed participation | {_yes(found["weights_equal"])} |
| model equal, to the last bit, to the local engine's for that participation | {_yes(found["same_bits"])} |
| replies late, refused, lost | {found["late"]}, {found["refused"]}, {found["lost"]} |
| replies made with a new memory, since the old one was lost | {found["fresh"]} |
{found.get("note", "")}
Memory of the server, in megabytes, looked at once a round: medians of the first and of the last fifth of the rounds,
the most, and the line through the second half of the rounds.

| | first | last | most | grows in 100 rounds | its standard error |
|---|---|---|---|---|---|
"""
    for part, one in found["memory"].items():
        text += f"| {NAMES[part]} | {one['first']:.1f} | {one['last']:.1f} | {one['most']:.1f} "
        text += f"| {one['per_100_samples']:+.2f} | {one['noise_per_100_samples']:.2f} |\n"
    return text


def siege(found: Mapping[str, Any]) -> str:
    """The server under attack."""
    requests: Mapping[str, int] = found["requests"]
    kinds = sorted({name.partition(":")[0] for name in requests})
    told = flow(
        f"""`python -m tests.deploy.siege OUT`: two honest nodes play; for {found["seconds"]:g} s a third, whose key is
        registered, answers every ask with something else, and three others send requests without end. The model has
        {found["model_megabytes"]:.1f} MB, a large body 50 times that ({found["body_megabytes"]:.0f} MB), noise up to 16
        kB; the gate's limit is {found["limit_megabytes"]:.0f} MB. Load {found["load"]:.0f}."""
    )
    text = f"""
## Under attack

{told}

| requests | sent | answers |
|---|---|---|
"""
    for kind in kinds:
        mine = {name.rpartition(": ")[2]: n for name, n in requests.items() if name.partition(":")[0] == kind}
        told = ", ".join(f"{answer}: {n}" for answer, n in mine.items())
        text += f"| {kind} | {sum(mine.values())} | {told} |\n"
    text += """
413: larger than the gate's limit. 401: no registered key, or not the supervisor's secret. 404, 405: there is no such
path, or nothing to be sent to it. 400: noise that Flower could not read, with the registered key or on the app's path,
which programs on the server's machine may use. *closed*: the connection was ended before the body was sent.

| answers of the turned node | given |
|---|---|
"""
    text += "".join(f"| {name} | {n} |\n" for name, n in found["answers_of_the_turned_node"].items())
    reasons = ", ".join(f"{reason} {n}" for reason, n in sorted(found["refused_by_reason"].items()))
    rounds = ", ".join(map(str, found["rounds_before_during_after"]))
    told = flow(
        f"""Refused by the engine, by reason: {reasons}. Counted meanwhile: {found["counted_of_turned"]} replies of the
        turned node, {" and ".join(map(str, found["counted_of_honest"]))} of the honest ones. Rounds before (20 s),
        during and after (20 s): {rounds}. The server's processes had to be brought back
        {sum(found["restarts_of_the_server"].values())} times. What a registered node sends in pieces, each below the
        gate's limit, Flower's server holds until the app has refused it: see docs/guides/deploy/server.md, "What the
        gate cannot bound"."""
    )
    text += f"""
{told}

| memory, MB | before (median) | most in the first half | most during | after (median) |
|---|---|---|---|---|
"""
    for part, one in found["memory"].items():
        half = one.get("most_in_first_half")
        text += f"| {NAMES[part]} | {one['before']:.0f} | {'-' if half is None else f'{half:.0f}'} "
        text += f"| {one['most_during']:.0f} | {one['after']:.0f} |\n"
    return text


def overhead(found: Sequence[Mapping[str, Any]]) -> str:
    """What a round costs."""
    text = """
## What a round costs when training costs nothing

`python -m tests.deploy.overhead --nodes 3 10 --out OUT`: Flower's own FedAvg app (numpy alone, no keys, Flower's own
settings) and a deployment of ours (certificates, keys, supervisors, checkpoints), one after the other; a model of
50,000 numbers. What the seconds are spent on: docs/concepts/deployment.md.

| nodes | whose | rounds | seconds a round: median (least to most) | load |
|---|---|---|---|---|
"""
    for one in found:
        whose = "Flower's FedAvg" if one["whose"] == "flower" else "pmfl"
        text += f"| {one['nodes']} | {whose} | {one['rounds']} | {one['median_seconds']:.2f} "
        text += f"({one['least']:.2f} to {one['most']:.2f}) | {one['load']:.1f} |\n"
    return text


def walk(found: Mapping[str, Any]) -> str:
    """The newcomer."""
    told = flow(
        f"""`python -m tests.deploy.walk OUT{" --install" if found["with_install"] else ""}`: the {found["commands"]}
        commands of docs/guides/deploy/walk.md as they are written, in {found["minutes"]:.1f} minutes{_installed(found)}
        (load {found["load"]:.0f}). Of {found["rounds"]} rounds the nodes took part in
        {", ".join(map(str, found["took_part"]))}."""
    )
    text = f"""
## A newcomer's walk

{told}

| at | step | seconds |
|---|---|---|
"""
    for step in found["steps"]:
        what = step["step"]
        shown = what.strip("[]") if what.startswith("[") else f"`{what.replace('|', chr(92) + '|')}`"
        text += f"| {step['at']:.0f} s | {shown} | {step['seconds']:.1f} |\n"
    return text


def flow(text: str) -> str:
    """A paragraph of lines that are not too long."""
    return textwrap.fill(" ".join(text.split()), WIDTH)


def _installed(found: Mapping[str, Any]) -> str:
    return ", the installation from a local store of packages among them" if found["with_install"] else ""


def _yes(so: bool) -> str:
    return "yes" if so else "NO"


PARTS: Mapping[str, Part] = {
    "same_bits": same_bits,
    "storm": storm,
    "siege": siege,
    "overhead": overhead,
    "walk": walk,
}
