"""Batch norm that also takes a batch of one, such as the text of a single label."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional


class BatchNorm(nn.BatchNorm1d):
    """Batch norm; one value of a channel is normed by what was seen so far."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalise (B, C) or (B, C, D)."""
        if self.training and x.numel() == x.shape[1]:
            return functional.batch_norm(
                x, self.running_mean, self.running_var, self.weight, self.bias, False, 0, self.eps
            )
        return super().forward(x)
