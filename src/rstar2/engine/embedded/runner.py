"""Runs a plan on the device: one prefill pass, then several decode steps without the CPU in between.

Invariant: a decode step reads and writes nothing but the device's own tables: it feeds each row's last token, samples
the next, stores it with its log-probability, and retires the row at a stop token or at its length. So on CUDA a step
is recorded once for each batch size and replayed; and a run of steps can be queued while the last one still runs,
because the device does not need what the CPU does not know yet (tokens, positions, rows that have ended).

On a CPU the rows of each pass are padded to a number at which a row's result is batch-invariant: see `kernels_cpu`. In
a decode step, guessed next tokens take the place of padding: see `drafts`.

Suffixes are those of `architecture`; Z: slots, A: steps ahead, X: several columns.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rstar2.engine.embedded import sampler
from rstar2.engine.embedded.architecture import ForwardBatch, Kernels, forward
from rstar2.engine.embedded.contexts_cpu import ROW_QUANTUM
from rstar2.engine.embedded.drafts import Draft, make_drafts
from rstar2.engine.embedded.invariant import with_invariant_products
from rstar2.engine.embedded.kernels_cpu import CpuKernels
from rstar2.engine.embedded.options import EngineLimits
from rstar2.engine.embedded.packing import Packing, can_pack
from rstar2.engine.embedded.prefill import PrefillLayout, RecordedPrefill, release_eager_memory
from rstar2.engine.embedded.scheduler import EngineSequence, PrefillChunk
from rstar2.engine.embedded.slots import SlotTables
from rstar2.engine.embedded.weights import Weights

_SMALL_BATCHES = (1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 640, 768, 896, 1024)
_BATCH_STEP = 256
"""The distance between larger batch sizes. Rows of padding cost little: their attention ends at once."""
NUM_DECIMALS = 6
"""The decimals of log-probabilities and entropies: the precision of a float32. All 17 digits of the float64 would
double the time and space of storing them."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """The output of a run of decode steps: for each row its ids, and the log-probability and entropy of each."""

    token_ids: list[list[int]]
    log_probs: list[list[float]]
    entropies: list[list[float]]


@dataclass(frozen=True, slots=True)
class DecodeHandle:
    """A queued run of decode steps, and where its output will be."""

    num_rows: int
    output_3AB: Tensor
    event: Any
    """The event at the end of the steps; None if they ran synchronously."""
    is_exact: bool = False
    """Whether every bit of log-probabilities and entropies is kept."""

    def wait(self) -> Sampled:
        if self.event is not None:
            self.event.synchronize()
        rows_3BA = np.ascontiguousarray(self.output_3AB.numpy()[:, :, : self.num_rows].transpose(0, 2, 1))
        counts_B = (rows_3BA[0] >= 0).sum(-1)
        token_ids = rows_3BA[0].astype(np.int64).tolist()
        log_probs, entropies = (rows_3BA[1:] if self.is_exact else rows_3BA[1:].round(NUM_DECIMALS)).tolist()
        for row in np.flatnonzero(counts_B < rows_3BA.shape[2]).tolist():
            for values in (token_ids, log_probs, entropies):
                del values[row][counts_B[row] :]
        return Sampled(token_ids, log_probs, entropies)


@dataclass(frozen=True, slots=True)
class ChunkScores:
    """The log-probabilities of one chunk's tokens, and the likeliest ids at their positions."""

    log_probs: list[float]
    ranks: list[int]
    top_ids: list[list[int]]
    top_log_probs: list[list[float]]


class Runner:
    def __init__(self, weights: Weights, limits: EngineLimits) -> None:
        self.is_asynchronous = weights.device.type == "cuda"
        if limits.batch_invariant:
            weights = with_invariant_products(weights)
        self._packing = Packing(weights) if weights.device.type == "cpu" else None
        self._weights = weights if self._packing is None else self._packing.weights
        self._limits = limits
        self._kernels = _make_kernels(weights, limits, self._num_padded(limits.max_running))
        self._slots = SlotTables(limits, weights.device)
        self._rows = _Rows(limits, self._num_padded(limits.max_running), weights.device)
        self._recorded_prefill = RecordedPrefill(weights, self._kernels, limits) if self.is_asynchronous else None
        # Drafts need a row's bits not to depend on other rows, and every step to begin with all tokens known.
        is_invariant = self._packing is not None and (weights.dtype == torch.float32 or can_pack(weights.dtype))
        self._can_draft = is_invariant and limits.steps_ahead == 1
        self._graphs: dict[tuple[int, bool], torch.cuda.CUDAGraph] = {}
        self._graph_pool: Any = None

    def weights_changed(self) -> None:
        if self._packing is not None:
            self._packing.drop()

    def give_cache_back(self) -> None:
        """Frees the cache's memory where that is possible. Nothing may run until `take_cache`."""
        self._kernels.give_cache_back()

    def take_cache(self) -> None:
        self._kernels.take_cache()

    @torch.inference_mode()
    def prefill(self, chunks: Sequence[PrefillChunk]) -> None:
        if self._recorded_prefill is not None:
            self._recorded_prefill.run(chunks)
        else:
            self._prefill_on_cpu(chunks)

    @torch.inference_mode()
    def score(self, chunk: PrefillChunk, start: int, num_top: int, temperature: float) -> ChunkScores:
        """Computes a chunk of a sequence, and scores its next tokens: those after position `start` - 1 of the sequence,
        up to the one behind the chunk."""
        if self._recorded_prefill is not None:
            hidden_TH = self._recorded_prefill.hidden_states([chunk])
        else:
            hidden_TH = self._prefill_on_cpu([chunk])
        first = max(chunk.start, start - 1)
        next_ids = chunk.sequence.token_ids[first + 1 : chunk.end + 1]
        if not next_ids:
            return ChunkScores([], [], [], [])
        rows_TH = hidden_TH[first - chunk.start : first - chunk.start + len(next_ids)]
        log_probs_TV = self._weights.head(rows_TH).float().div_(temperature).log_softmax(-1)
        next_T = torch.tensor(next_ids, device=log_probs_TV.device)
        values_T = log_probs_TV.gather(-1, next_T[:, None])[:, 0]
        ranks_T = (log_probs_TV > values_T[:, None]).sum(-1) + 1
        top = log_probs_TV.topk(min(num_top, log_probs_TV.shape[-1]), -1)
        values, top_values = (
            each.double().cpu().numpy().round(NUM_DECIMALS).tolist() for each in (values_T, top.values)
        )
        return ChunkScores(values, ranks_T.tolist(), top.indices.tolist(), top_values)

    def _prefill_on_cpu(self, chunks: Sequence[PrefillChunk]) -> Tensor:
        """The hidden states of the chunks' tokens, concatenated."""
        if self._packing is not None:
            self._packing.drop_if_stale()
        layout = PrefillLayout.of(chunks, self._limits.block_size)
        num_tokens = len(layout.token_ids)
        num_padding = self._num_padded(num_tokens) - num_tokens
        batch = ForwardBatch(
            positions_T=torch.from_numpy(np.pad(layout.positions, (0, num_padding), constant_values=-1)),
            slots_T=torch.from_numpy(np.pad(layout.slots, (0, num_padding), constant_values=-1)),
            table_RP=torch.from_numpy(layout.table.astype(np.int32)),
            spans=layout.spans,
        )
        token_ids_T = torch.from_numpy(np.pad(layout.token_ids, (0, num_padding)))
        return forward(self._weights, self._kernels, token_ids_T, batch)[:num_tokens]

    @torch.inference_mode()
    def start_decode(self, sequences: Sequence[EngineSequence]) -> DecodeHandle:
        """Queues `steps_ahead` steps for these sequences; on CUDA it returns at once."""
        if self._packing is not None:
            self._packing.drop_if_stale()
        num_rows = len(sequences)
        batch_size = self._num_padded(num_rows)
        is_cut = any(s.sampling.top_k > 0 or s.sampling.top_p < 1 for s in sequences)
        graph = self._graph(batch_size, is_cut) if self.is_asynchronous else None
        num_columns = max(len(sequence.blocks) for sequence in sequences)
        slots_B = self._slots.update(sequences, batch_size)
        if self._can_draft and (drafts := make_drafts(sequences, batch_size, self._limits.block_size)):
            return self._decode_with_drafts(slots_B, num_rows, drafts, is_cut, num_columns)
        self._rows.take(self._slots, slots_B, num_columns)
        for _ in range(self._limits.steps_ahead):
            if graph is not None:
                graph.replay()
            else:
                self._decode_step(batch_size, is_cut, num_columns)
        self._rows.put_back(self._slots, slots_B)
        return DecodeHandle(num_rows, *self._rows.fetch_output(), self._limits.batch_invariant)

    def _decode_with_drafts(
        self, slots_B: Tensor, num_rows: int, drafts: Sequence[Draft], is_cut: bool, num_columns: int
    ) -> DecodeHandle:
        """Runs one decode step, which outputs more than one token for a row if its draft was right."""
        for draft in drafts:
            slots_B[draft.first_row : draft.first_row + len(draft.token_ids)] = slots_B[draft.row]
        self._rows.take(self._slots, slots_B, num_columns)
        for draft in drafts:
            self._rows.set_draft(draft)
        self._decode_step(len(slots_B), is_cut, num_columns)
        output_3AB = self._rows.accept(num_rows, drafts)
        self._rows.put_back(self._slots, slots_B[:num_rows])
        return DecodeHandle(num_rows, output_3AB, None)

    def record_all(self) -> None:
        """Records decode steps and prefills of all sizes now rather than at first use; does nothing on a CPU. Steps
        that cut the distribution (top_k, top_p) are recorded at first use."""
        if self._recorded_prefill is not None:
            with torch.inference_mode():
                self._recorded_prefill.record_all()
            for batch_size in sorted({_batch_size(number) for number in range(1, self._limits.max_running + 1)}):
                self._graph(batch_size, is_cut=False)

    def _decode_step(self, batch_size: int, is_cut: bool, num_columns: int) -> None:
        rows, block_size = self._rows, self._limits.block_size
        position_B = rows.position_B[:batch_size]
        table_BP = rows.table_BP[:batch_size, :num_columns]
        is_alive_B = position_B >= 0
        block_B = table_BP.gather(1, (position_B.clamp(min=0) // block_size)[:, None])[:, 0].long()
        slots_B = torch.where(is_alive_B, block_B * block_size + position_B % block_size, -1)
        batch = ForwardBatch(position_B, slots_B, table_BP)
        hidden_BH = forward(self._weights, self._kernels, rows.token_B[:batch_size], batch)
        logits_BV = self._weights.head(hidden_BH)
        inverse_temperature_B = rows.inverse_temperature_B[:batch_size]
        if is_cut:
            top_k_B, top_p_B = rows.top_k_B[:batch_size], rows.top_p_B[:batch_size]
            logits_BV = sampler.cut(logits_BV, inverse_temperature_B, top_k_B, top_p_B)
        uniform_B = sampler.uniform(rows.seed_B[:batch_size], position_B)
        token_B, log_prob_B, entropy_B = self._kernels.draw(logits_BV, uniform_B, inverse_temperature_B)
        rows.advance(batch_size, is_alive_B, token_B, log_prob_B, entropy_B)

    def _graph(self, batch_size: int, is_cut: bool) -> torch.cuda.CUDAGraph:
        """The CUDA graph of the step of one batch size. Its rows are empty while recording: nothing is stored."""
        key = (batch_size, is_cut)
        if key not in self._graphs:
            self._rows.clear()
            num_columns = self._limits.max_blocks_per_sequence
            stream: Any = torch.cuda.Stream(self._weights.device)  # type: ignore[no-untyped-call]
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream), torch.inference_mode():
                self._decode_step(batch_size, is_cut, num_columns)  # compiles kernels, and makes the libraries ready
            torch.cuda.current_stream().wait_stream(stream)
            release_eager_memory()
            self._rows.clear()
            graph = torch.cuda.CUDAGraph()
            # thread_local: a trainer may allocate from its own thread at the same time.
            with torch.inference_mode(), torch.cuda.graph(graph, self._graph_pool, capture_error_mode="thread_local"):
                self._decode_step(batch_size, is_cut, num_columns)
            self._graph_pool = self._graph_pool or graph.pool()
            self._graphs[key] = graph
        return self._graphs[key]

    def _num_padded(self, num_rows: int) -> int:
        return _batch_size(num_rows) if self.is_asynchronous else -(-num_rows // ROW_QUANTUM) * ROW_QUANTUM


class _Rows:
    """The running batch: compact copies of its slots' tables, at fixed addresses, and its output buffer."""

    def __init__(self, limits: EngineLimits, size: int, device: torch.device) -> None:
        def column(dtype: torch.dtype, *shape: int) -> Tensor:
            return torch.zeros((size, *shape), dtype=dtype, device=device)

        self.token_B = column(torch.int64)
        self.position_B = column(torch.int64)
        self.fixed_BX = column(torch.int64, SlotTables.NUM_FIXED_INTEGERS)
        self.inverse_temperature_B = column(torch.float32)
        self.top_p_B = column(torch.float32)
        self.table_BP = column(torch.int32, limits.max_blocks_per_sequence)
        self.step = torch.zeros(1, dtype=torch.int64, device=device)
        # float64 holds every token id exactly, so one buffer and one copy carry all three.
        self.output_3AB = torch.zeros((3, limits.steps_ahead, size), dtype=torch.float64, device=device)
        self.last_position_B, self.seed_B, self.top_k_B = self.fixed_BX[:, :3].unbind(1)
        self.stop_BX = self.fixed_BX[:, 3:]

    def take(self, slots: SlotTables, slots_B: Tensor, num_columns: int) -> None:
        size = len(slots_B)
        self.token_B[:size] = slots.token_Z[slots_B]
        self.position_B[:size] = slots.position_Z[slots_B]
        self.fixed_BX[:size] = slots.fixed_ZX[slots_B]
        self.inverse_temperature_B[:size] = slots.inverse_temperature_Z[slots_B]
        self.top_p_B[:size] = slots.top_p_Z[slots_B]
        self.table_BP[:size, :num_columns] = slots.table_ZP[slots_B, :num_columns]
        self.step.zero_()

    def put_back(self, slots: SlotTables, slots_B: Tensor) -> None:
        slots.token_Z[slots_B] = self.token_B[: len(slots_B)]
        slots.position_Z[slots_B] = self.position_B[: len(slots_B)]

    def advance(self, size: int, is_alive_B: Tensor, token_B: Tensor, log_prob_B: Tensor, entropy_B: Tensor) -> None:
        """Stores the sampled tokens, and advances each live row or retires it."""
        shown_B = torch.where(is_alive_B, token_B, -1)
        sampled_3B = torch.stack((shown_B.double(), log_prob_B.double(), entropy_B.double()))
        self.output_3AB[:, :, :size].index_copy_(1, self.step, sampled_3B[:, None])
        self.step += 1
        position_B = self.position_B[:size]
        is_stop_B = (token_B[:, None] == self.stop_BX[:size]).any(-1)
        continues_B = is_alive_B & ~is_stop_B & (position_B + 1 < self.last_position_B[:size])
        position_B.copy_(torch.where(continues_B, position_B + 1, -1))
        # A row that has ended computes garbage: its token must stay a valid id.
        self.token_B[:size].copy_(torch.where(is_alive_B, token_B, self.token_B[:size]))

    def set_draft(self, draft: Draft) -> None:
        """Puts the tokens of a draft into its rows, which were taken as copies of its sequence's row."""
        num_tokens = len(draft.token_ids)
        rows = slice(draft.first_row, draft.first_row + num_tokens)
        self.token_B[rows] = torch.tensor(draft.token_ids)
        self.position_B[rows] += torch.arange(1, num_tokens + 1)

    def accept(self, num_rows: int, drafts: Sequence[Draft]) -> Tensor:
        """Returns the output of a step with drafts: that of each row, and of its draft's rows as far as the draft was
        right. Each row moves to the state of its last accepted token."""
        num_columns = 1 + max(len(draft.token_ids) for draft in drafts)
        output_3AB = torch.full((3, num_columns, num_rows), -1.0, dtype=torch.float64)
        output_3AB[:, 0] = self.output_3AB[:, 0, :num_rows]
        sampled, positions = self.token_B.tolist(), self.position_B.tolist()
        for draft in drafts:
            last = draft.row
            for number, token_id in enumerate(draft.token_ids):
                # A position of -1: the row before has sampled the last token of its turn.
                if sampled[last] != token_id or positions[last] < 0:
                    break
                last = draft.first_row + number
                output_3AB[:, 1 + number, draft.row] = self.output_3AB[:, 0, last]
            self.token_B[draft.row], self.position_B[draft.row] = sampled[last], positions[last]
        return output_3AB

    def fetch_output(self) -> tuple[Tensor, Any]:
        """A host copy, and the event after which it is complete."""
        if self.output_3AB.device.type != "cuda":
            return self.output_3AB.clone(), None
        host = torch.empty_like(self.output_3AB, device="cpu", pin_memory=True)
        host.copy_(self.output_3AB, non_blocking=True)
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        return host, event

    def clear(self) -> None:
        self.position_B.fill_(-1)
        self.step.zero_()


def _make_kernels(weights: Weights, limits: EngineLimits, max_rows: int) -> Kernels:
    if weights.device.type != "cuda":
        return CpuKernels(weights, limits)
    from rstar2.engine.embedded.kernels_cuda import CudaKernels, InvariantCudaKernels

    if limits.batch_invariant:
        return InvariantCudaKernels(weights, limits, max_rows)
    return CudaKernels(weights, limits)


def _batch_size(num_rows: int) -> int:
    for size in _SMALL_BATCHES:
        if num_rows <= size:
            return size
    return -(-num_rows // _BATCH_STEP) * _BATCH_STEP
