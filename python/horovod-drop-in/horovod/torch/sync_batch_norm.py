"""Batch normalization over the batches of all ranks."""

from lockstep.torch.sync_batch_norm import SyncBatchNorm

__all__ = ["SyncBatchNorm"]
