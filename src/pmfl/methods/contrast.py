"""The model-contrastive term of MOON and PMFL: towards the received model, away from old local ones.

In MOON every old model is a negative; in PMFL those that agree with the current one count as positives.
Shape suffixes: B batch, D representation, M old models.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from pmfl.core.types import Scalar


def contrast(
    z_BD: Tensor, sent_BD: Tensor, past_MBD: Tensor, valid_M: Tensor, threshold: Tensor | float, tau: float
) -> Scalar:
    """l_con = mean of -log(pos / (pos + neg)), by log-sum-exp so that a small tau cannot overflow.

    threshold: mu, or representations [B, D] whose similarity to ``sent_BD`` is mu; an old model is a positive
        where its similarity to ``z_BD`` reaches mu, and a negative elsewhere
    """
    m = past_MBD.shape[0]
    # One reduction for all pairs: the pair that sets mu may be in the history too, and then the tie must be exact.
    anchor_BD = threshold if isinstance(threshold, Tensor) else sent_BD
    these = torch.cat([z_BD.expand(1 + m, *z_BD.shape), anchor_BD[None]])
    those = torch.cat([sent_BD[None], past_MBD, sent_BD[None]])
    similar = cosine_similarity(these, those, dim=-1)
    to_sent_1B, to_past_MB = similar[:1], similar[1:-1]
    mu = similar[-1] if isinstance(threshold, Tensor) else threshold
    counts_MB = valid_M[:, None].expand_as(to_past_MB)
    positive_MB = counts_MB & (to_past_MB >= mu)

    def log_sum(keep_MB: Tensor) -> Tensor:
        return torch.cat([to_sent_1B, to_past_MB.masked_fill(~keep_MB, -torch.inf)]).div(tau).logsumexp(0)

    return (log_sum(counts_MB) - log_sum(positive_MB)).mean()
