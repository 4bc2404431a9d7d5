"""Batch normalization over the batches of all ranks."""

from __future__ import annotations

import torch

from lockstep.process_sets import ProcessSet, global_process_set
from lockstep.torch.reduction import Sum, allreduce


class SyncBatchNorm(torch.nn.modules.batchnorm._BatchNorm):
    """As torch.nn.BatchNorm1d, 2d or 3d, but in training the mean and the variance are those of all ranks' inputs.

    The ranks may have batches of different size.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats)
        self.process_set = process_set

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"Lockstep: SyncBatchNorm expects at least 2 dimensions, this input has {input.dim()}.")

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        self._check_input_dim(input)
        uses_batch = self.training or self.running_mean is None
        if not uses_batch or not self.process_set.included() or self.process_set.size() == 1:
            return super().forward(input)
        # Half precision is too coarse to sum a batch in.
        wide = input.float() if input.dtype in (torch.float16, torch.bfloat16) else input
        mean, variance, count = self._moments(wide)
        if self.training and self.track_running_stats:
            self._track(mean.detach(), variance.detach(), count)
        shape = [1, -1] + [1] * (input.dim() - 2)
        scale = torch.rsqrt(variance + self.eps)
        if self.weight is not None:
            scale = scale * self.weight
        output = (wide - mean.view(shape)) * scale.view(shape)
        if self.bias is not None:
            output = output + self.bias.view(shape)
        return output.to(input.dtype)

    def _moments(self, input: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, float]:
        """Mean and variance of each channel over all ranks, and how many values they are made of.

        The variance is summed around the mean in a second round: the square of sums would lose digits.
        """
        dimensions = [0, *range(2, input.dim())]
        own = input.new_full((1,), input.numel() / max(1, input.shape[1]))
        sums = allreduce(torch.cat([input.sum(dimensions), own]), op=Sum, process_set=self.process_set)
        count = float(sums[-1].item())
        if count <= 1:
            raise ValueError("Lockstep: SyncBatchNorm needs more than one value per channel in training.")
        mean = sums[:-1] / count
        shape = [1, -1] + [1] * (input.dim() - 2)
        squares = (input - mean.view(shape)).square().sum(dimensions)
        return mean, allreduce(squares, op=Sum, process_set=self.process_set) / count, count

    def _track(self, mean: torch.Tensor, variance: torch.Tensor, count: float) -> None:
        assert self.running_mean is not None and self.running_var is not None
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        weight = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), weight)
        self.running_var.lerp_((variance * (count / (count - 1))).to(self.running_var.dtype), weight)
