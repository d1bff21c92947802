"""The page of a study: one file, nothing to fetch, honest about what is missing."""

from __future__ import annotations

import importlib.metadata
import json
import time
from collections.abc import Sequence
from pathlib import Path

from pmfl.report.findings import WHAT, findings, measure_of, verdict
from pmfl.report.html import Drawer, Section, download, sheet, write_page
from pmfl.report.pictures import client_sections, curve_sections, final_picture
from pmfl.report.rare_clients import READING, rare_client_columns, rare_client_findings, rare_client_rows
from pmfl.report.records import repeat_section, runs_section, settings_section
from pmfl.report.series import runs_of, settings
from pmfl.report.tables import MEASURES, Column, Row, difference_rows, reading, summary_rows, to_csv
from pmfl.study.answers import NOT_STARTED
from pmfl.study.grid import Study
from pmfl.study.settings import look_up
from pmfl.study.store import RunRow, Store

VERDICTS = {"ahead": "ahead", "behind": "behind", "unclear": "not told apart", "unknown": "too few seeds"}


def write_report(store: Store, study: Study, to: Path) -> Path:
    """Write what a study's runs showed, so far as they have got, as one HTML page; returns where it lies.

    ``[report] value`` of the study chooses the number it is judged by, ``reference`` the method that the others are
    compared with, which otherwise is the first, and ``rare_clients`` the one whose participation bias they are.
    """
    specs = study.runs
    runs = runs_of(store, study, specs)
    found = settings(study, runs)
    measure, reference = measure_of(study), str(study.report.get("reference", ""))
    summary, gaps = summary_rows(found), difference_rows(found, reference)
    draw = Drawer()
    figures = final_picture(draw, found, summary, measure, WHAT[measure])
    sections = [Section("Results", sheets=[sheet(summary, reading(summary))], figures=figures)]
    if gaps:
        sections.append(_differences(gaps, measure))
    rare = rare_client_rows(store, study, found)
    if rare:
        layout = rare_client_columns(rare)
        sections.append(
            Section("Participation bias", rare_client_findings(rare), [sheet(rare, READING, layout=layout)])
        )
    sections += curve_sections(draw, store, found)
    sections += client_sections(draw, store, found)
    sections += [settings_section(study, runs), repeat_section(study, specs), runs_section(study, specs, runs)]
    done = sum(run.status == "done" for run in runs)
    files = {f"{study.id}.csv": summary, **({f"{study.id}-differences.csv": gaps} if gaps else {})}
    files |= {f"{study.id}-rare-clients.csv": rare} if rare else {}
    return write_page(
        to,
        kind="pmfl report",
        title=study.title or study.id,
        claim=study.claim,
        facts=_facts(study, runs),
        notice_title=f"{len(runs) - done} of {len(runs)} runs are not finished. Numbers are of the others only.",
        notices=notices(runs),
        findings=[*findings(found, measure, reference), *rare_client_findings(rare)],
        sections=sections,
        downloads=[download(name, to_csv(rows)) for name, rows in files.items()],
        version=importlib.metadata.version("pmfl"),
        footer="Made by pmfl from the records of these runs. The page holds all it shows and fetches nothing.",
    )


def notices(runs: Sequence[RunRow]) -> list[str]:
    """What is not as it should be, run by run; runs that have not begun are counted."""
    said = []
    for run in runs:
        who = f"{run.method}, seed {run.seed}"
        if run.status in ("diverged", "failed"):
            what = json.loads(run.note)["message"] if run.note else "for a reason that was not recorded"
            said.append(f"{who}: {run.status} after {run.t:,} of {run.total:,} rounds: {what}")
        elif run.status == "interrupted":
            said.append(f"{who}: interrupted after {run.t:,} of {run.total:,} rounds; the same command goes on with it")
        elif run.status == "running":
            heard = time.strftime("%Y-%m-%d %H:%M", time.localtime(run.updated))
            said.append(f"{who}: at round {run.t:,} of {run.total:,} when last heard of, {heard}")
    absent = sum(run.status in ("waiting", NOT_STARTED) for run in runs)
    return [*said, f"{absent} not started"] if absent else said


def _facts(study: Study, runs: Sequence[RunRow]) -> list[str]:
    done = sum(run.status == "done" for run in runs)
    facts = [f"study {study.id}", f"{done} of {len(runs)} runs finished" if done < len(runs) else f"{done} runs"]
    for key, unit in (("data.dataset", ""), ("data.clients", " clients"), ("training.rounds", " rounds")):
        values = list(dict.fromkeys(look_up(run.spec, key) for run in runs))
        facts.append(", ".join(f"{value:,}" if isinstance(value, int) else str(value) for value in values) + unit)
    return facts


def _differences(gaps: Sequence[Row], measure: str) -> Section:
    key = f"test_accuracy_{measure}_difference"
    said = Column(f"by {MEASURES[measure]}", lambda row: VERDICTS[verdict(row, key)], is_number=False)
    text = (
        "Under one seed all methods see the same clients, the same participation and the same mini-batches. "
        "Differences are therefore taken seed by seed: what a seed does to all methods alike cancels out."
    )
    return Section("Paired differences", [text], [sheet(gaps, reading(gaps), [said])])
