"""The linear layers of the local network on torch CPU: rows in, `rows @ weight.T` out.

How a matrix is laid out decides how fast a handful of rows is, which is what a batch of answers has; and how many bits
its elements have decides how much is read for one row.
"""

from collections.abc import Callable
from enum import Enum

import torch
from torch import Tensor
import torch.nn.functional as F

Linear = Callable[[Tensor], Tensor]  # (num_rows, num_inputs) → (num_rows, num_outputs)

FEW_ROWS = range(4, 48)
PADDING = 16  # elements; rows of exactly 12 KiB, say, would fall on the same few sets of a cache
INT8_MAX = 127
TINY = torch.finfo(torch.float32).tiny
SATURATES = not torch.cpu._is_vnni_supported()  # sums of pairs in 16 bits, on older CPUs: activations get 7 bits there


class Weights(Enum):
    """What the elements of a network's matrices are."""

    FLOAT32 = 'float32'
    """As the model has them."""
    INT8 = 'int8'
    """8 bits with a scale for each output, and activations are rounded to 8 bits row by row: faster, not exact."""


class ColumnLinear:
    """float32, stored by columns: up to half as fast again for 4 to 64 rows as by rows, and as fast beyond."""

    def __init__(self, weight: Tensor) -> None:
        num_outputs, num_inputs = weight.shape
        self._columns = weight.new_zeros((num_inputs, num_outputs + PADDING))[:, :num_outputs]
        self._columns.copy_(weight.t())

    def __call__(self, rows: Tensor) -> Tensor:
        return torch.mm(rows, self._columns)


class RowLinear:
    """float32 over a matrix that is also something else, a table of embeddings."""

    def __init__(self, weight: Tensor) -> None:
        self._weight = weight

    def __call__(self, rows: Tensor) -> Tensor:
        if FEW_ROWS.start <= rows.shape[0] < FEW_ROWS.stop:
            return torch.mm(self._weight, rows.t()).t()  # takes MKL half the time of rows @ weight.T
        return F.linear(rows, self._weight)


class Int8Linear:
    """int8 by int8 with int32 sums; rows and outputs have scales of their own."""

    def __init__(self, weight: Tensor) -> None:
        scales = (weight.abs().amax(dim=1) / INT8_MAX).clamp_min(TINY).double()
        zeros = torch.zeros(len(scales), dtype=torch.int64)
        rounded = torch.quantize_per_channel(weight, scales, zeros, 0, torch.qint8)
        self._packed = torch.ops.quantized.linear_prepack(rounded, None)

    def __call__(self, rows: Tensor) -> Tensor:
        sizes = rows.abs().amax(dim=1, keepdim=True).clamp_min(TINY)  # torch's kernel has one scale for all rows
        product: Tensor = torch.ops.quantized.linear_dynamic(rows / sizes, self._packed, SATURATES)
        return product * sizes


LAYERS: dict[Weights, Callable[[Tensor], Linear]] = {Weights.FLOAT32: ColumnLinear, Weights.INT8: Int8Linear}
"""Makes a layer of a matrix (num_outputs, num_inputs)."""
HEADS: dict[Weights, Callable[[Tensor], Linear]] = {Weights.FLOAT32: RowLinear, Weights.INT8: Int8Linear}
"""Makes the last layer of a matrix that may be the embeddings, which stay what they are."""
