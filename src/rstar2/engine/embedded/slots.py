"""The device's tables of running sequences, by slot: last token and position, sampling, blocks.

Invariant: the CPU writes a slot when its sequence first decodes, and from then on only adds blocks; tokens and
positions are updated by the device alone. So the CPU may be a run of steps behind and still provide all that the next
run needs.

Suffixes: Z slots (the last one is unused: padding points at it, and its position stays -1), P blocks of a row's table,
X several columns, B rows of the batch.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from rstar2.engine.embedded.options import MAX_STOP_TOKENS, EngineLimits
from rstar2.engine.embedded.scheduler import EngineSequence


class SlotTables:
    NUM_FIXED_INTEGERS = 3 + MAX_STOP_TOKENS
    """The position of the last token that may be sampled, the seed, top_k, and the stop ids."""

    def __init__(self, limits: EngineLimits, device: torch.device) -> None:
        num_slots = limits.max_running + 1

        def column(dtype: torch.dtype, *shape: int) -> Tensor:
            return torch.zeros((num_slots, *shape), dtype=dtype, device=device)

        self.token_Z = column(torch.int64)
        self.position_Z = column(torch.int64).fill_(-1)
        self.fixed_ZX = column(torch.int64, self.NUM_FIXED_INTEGERS)
        self.inverse_temperature_Z = column(torch.float32)
        """0 means greedy."""
        self.top_p_Z = column(torch.float32)
        self.table_ZP = column(torch.int32, limits.max_blocks_per_sequence)
        self._device = device
        self._known_blocks: list[list[int] | None] = [None] * num_slots
        self._num_known_blocks = [0] * num_slots

    def update(self, sequences: Sequence[EngineSequence], batch_size: int) -> Tensor:
        """Writes the sequences' new values and blocks to the device; returns their slots, padded to the batch size."""
        newcomers: list[EngineSequence] = []
        additions: list[tuple[int, int, int]] = []
        for sequence in sequences:
            slot, blocks = sequence.slot, sequence.blocks
            # A sequence gets a new list of blocks at each admission, so another list means a new sequence.
            if self._known_blocks[slot] is not blocks:
                self._known_blocks[slot] = blocks
                self._num_known_blocks[slot] = 0
                newcomers.append(sequence)
            num_known = self._num_known_blocks[slot]
            if num_known != len(blocks):
                additions += [(slot, column, blocks[column]) for column in range(num_known, len(blocks))]
                self._num_known_blocks[slot] = len(blocks)
        if newcomers:
            self._write_new(newcomers)
        if additions:
            slot_M, column_M, block_M = self._to_device(np.array(additions, dtype=np.int64)).unbind(1)
            self.table_ZP[slot_M, column_M] = block_M.int()
        slots = np.full(batch_size, len(self._known_blocks) - 1, dtype=np.int64)
        slots[: len(sequences)] = [sequence.slot for sequence in sequences]
        return self._to_device(slots)

    def _write_new(self, newcomers: list[EngineSequence]) -> None:
        integers = np.full((len(newcomers), 3 + self.NUM_FIXED_INTEGERS), -1, dtype=np.int64)
        floats = np.empty((len(newcomers), 2), dtype=np.float32)
        for row, sequence in enumerate(newcomers):
            sampling, num_tokens = sequence.sampling, len(sequence.token_ids)
            integers[row, :3] = (sequence.slot, sequence.token_ids[-1], num_tokens - 1)
            integers[row, 3:6] = (sequence.max_total_tokens - 1, sequence.seed, sampling.top_k)
            integers[row, 6 : 6 + len(sampling.stop_token_ids)] = sampling.stop_token_ids
            # A rounded sum of probabilities may reach 1 before the last token: only infinity cuts nothing.
            top_p = sampling.top_p if sampling.top_p < 1 else np.inf
            floats[row] = (1 / sampling.temperature if sampling.temperature > 0 else 0, top_p)
        integers_MX, floats_M2 = self._to_device(integers), self._to_device(floats)
        slot_M = integers_MX[:, 0]
        self.token_Z[slot_M] = integers_MX[:, 1]
        self.position_Z[slot_M] = integers_MX[:, 2]
        self.fixed_ZX[slot_M] = integers_MX[:, 3:]
        self.inverse_temperature_Z[slot_M] = floats_M2[:, 0]
        self.top_p_Z[slot_M] = floats_M2[:, 1]

    def _to_device(self, array: "np.ndarray[tuple[int, ...], np.dtype[np.generic]]") -> Tensor:
        tensor = torch.from_numpy(array)
        is_cuda = self._device.type == "cuda"
        return tensor.pin_memory().to(self._device, non_blocking=True) if is_cuda else tensor
