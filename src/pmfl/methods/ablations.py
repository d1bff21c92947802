"""PMFL with one rule exchanged: what each of its three contributions is worth (Table V of the paper)."""

from __future__ import annotations

from pmfl.core.method import Method, add_step, participant_mean, plain_client
from pmfl.core.params import Count, Rate, Weight
from pmfl.methods.fedau import Timing
from pmfl.methods.global_history import HistoryIn
from pmfl.methods.pmfl import Threshold, Unit, pmfl


def pmfl_mct(
    *,
    cutoff: Count = 50,
    timing: Timing = "inclusive",
    global_models: Count = 3,
    history_in: HistoryIn = "update",
    server_lr: Rate = 1.0,
) -> Method:
    """PMFL without its model-contrastive term.

    cutoff: C, the longest participation interval that counts; 0 for none
    timing: whether a weight counts the interval that ends now ("inclusive") or not ("predictive")
    global_models: H, the global buffer: this model and H - 1 older ones; 0 or 1 for no mixing
    history_in: where the mix acts: on the server's own "update", on the "broadcast", on "evaluation" only
    server_lr: eta_g, the global learning rate
    """
    full = pmfl(cutoff=cutoff, timing=timing, global_models=global_models, history_in=history_in, server_lr=server_lr)
    return full.but("pmfl-mct", client=plain_client)


def pmfl_awc(
    *,
    contrast_weight: Weight = 0.5,
    temperature: Rate = 0.5,
    local_models: Count = 5,
    threshold: Threshold | float = "last_local",
    history_unit: Unit = "iteration",
    global_models: Count = 3,
    history_in: HistoryIn = "update",
    server_lr: Rate = 1.0,
) -> Method:
    """PMFL without its adaptive weights: the mean over those who took part.

    contrast_weight: lambda, the weight of the model-contrastive term
    temperature: tau of the model-contrastive term
    local_models: N, how many past local models a client keeps
    threshold: mu, from which similarity on a past model is a positive: a rule or a number
    history_unit: whether a client remembers the model of every iteration, or of every round
    global_models: H, the global buffer: this model and H - 1 older ones; 0 or 1 for no mixing
    history_in: where the mix acts: on the server's own "update", on the "broadcast", on "evaluation" only
    server_lr: eta_g, the global learning rate
    """
    full = pmfl(
        contrast_weight=contrast_weight,
        temperature=temperature,
        local_models=local_models,
        threshold=threshold,
        history_unit=history_unit,
        global_models=global_models,
        history_in=history_in,
        server_lr=server_lr,
    )
    return full.but("pmfl-awc", weigh=participant_mean)


def pmfl_hgm(
    *,
    contrast_weight: Weight = 0.5,
    temperature: Rate = 0.5,
    local_models: Count = 5,
    threshold: Threshold | float = "last_local",
    history_unit: Unit = "iteration",
    cutoff: Count = 50,
    timing: Timing = "inclusive",
    server_lr: Rate = 1.0,
) -> Method:
    """PMFL without its global history: every round moves the model by the full step.

    contrast_weight: lambda, the weight of the model-contrastive term
    temperature: tau of the model-contrastive term
    local_models: N, how many past local models a client keeps
    threshold: mu, from which similarity on a past model is a positive: a rule or a number
    history_unit: whether a client remembers the model of every iteration, or of every round
    cutoff: C, the longest participation interval that counts; 0 for none
    timing: whether a weight counts the interval that ends now ("inclusive") or not ("predictive")
    server_lr: eta_g, the global learning rate
    """
    full = pmfl(
        contrast_weight=contrast_weight,
        temperature=temperature,
        local_models=local_models,
        threshold=threshold,
        history_unit=history_unit,
        cutoff=cutoff,
        timing=timing,
        server_lr=server_lr,
    )
    return full.but("pmfl-hgm", server=add_step(server_lr))
