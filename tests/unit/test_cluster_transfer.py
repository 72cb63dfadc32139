"""What is sent to which engines, in which order, and what a transfer comes to when an engine or a rank fails in it."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from train_models import build_model, make_policy

from rstar2.cluster.rank_transfer import EngineLink, RankTransfer, worker_init_info
from rstar2.cluster.weight_sync import VllmTransferSync
from rstar2.engine.vllm.checkpoint import EMBEDDING, HEAD
from rstar2.engine.vllm.transfer import (
    AbortingLink,
    Backend,
    ErrorKeepingLink,
    Link,
    Rendezvous,
    Sender,
    ServedWeights,
    TransferError,
    WeightStream,
    with_head,
)
from rstar2.train.policy.served_weights import served_shapes

pytestmark = pytest.mark.unit

NAMES = (EMBEDDING, "model.layers.0.w", "model.norm.weight")


@dataclass
class Weights:
    """Three tensors, and who has asked for which of them."""

    taken: list[str] = field(default_factory=list)
    fails_at: str | None = None

    def served(self) -> ServedWeights:
        return ServedWeights(dict.fromkeys(NAMES, (2, 3)), torch.bfloat16, self.walk)

    def walk(self) -> Iterator[tuple[str, Tensor]]:
        for name in NAMES:
            if name == self.fails_at:
                raise RuntimeError("a rank is gone")
            self.taken.append(name)
            yield name, torch.ones(2, 3, dtype=torch.bfloat16)


@dataclass
class FakeActor:
    """Answers as it was told to, and keeps what it was asked."""

    answers: dict[str, Callable[[], Future[Any]]] = field(default_factory=dict)
    asked: list[tuple[str, tuple[Any, ...]]] = field(default_factory=list)

    def __getattr__(self, method: str) -> Any:
        def remote(*arguments: Any) -> Any:
            self.asked.append((method, arguments))
            future = self.answers.get(method, done)()
            return type("Call", (), {"future": lambda _: future})()

        return type("Method", (), {"remote": staticmethod(remote)})()


def done() -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(None)
    return future


def died() -> Future[Any]:
    future: Future[Any] = Future()
    future.set_exception(OSError("the actor died"))
    return future


def test_engines_are_asked_in_the_order_of_a_transfer_and_told_the_version() -> None:
    engines = {"engine-0": FakeActor(), "engine-3": FakeActor()}
    link = EngineLink(engines, num_workers_each=2)
    link.version = 7
    link.init_weight_transfer_engine({"master_port": 1, "rank_offset": 1, "world_size": 5})
    link.start_weight_update()
    link.update_weights({"names": ["a"]})
    link.finish_weight_update()
    for actor, rank_offset in zip(engines.values(), (1, 3), strict=True):
        assert actor.asked == [
            ("open_transfer", ({"master_port": 1, "rank_offset": rank_offset, "world_size": 5},)),
            ("begin_transfer", ()),
            ("receive", ({"names": ["a"]},)),
            ("end_transfer", (7,)),
        ]


def test_workers_are_counted_over_all_engines() -> None:
    offsets = [worker_init_info({"rank_offset": 1}, engine, 4)["rank_offset"] for engine in range(3)]
    assert offsets == [1, 5, 9]
    assert worker_init_info({"packed": True}, 2, 4) == {"packed": True}, "who meets nowhere has no number"


def test_an_engine_that_dies_is_named_while_another_never_answers() -> None:
    engines = {"engine-0": FakeActor({"receive": Future}), "engine-1": FakeActor({"receive": died})}
    with pytest.raises(TransferError, match="engine-1 failed in receive: the actor died"):
        EngineLink(engines, 1, deadline_s=60.0).update_weights({})


def test_engines_that_are_late_are_named() -> None:
    engines = {"engine-0": FakeActor({"begin_transfer": Future}), "engine-1": FakeActor()}
    with pytest.raises(TransferError, match=r"^engine-0 did not end begin_transfer within 0\.05 s"):
        EngineLink(engines, 1, deadline_s=0.05).start_weight_update()


def test_a_tied_model_is_sent_with_a_head_of_its_own() -> None:
    weights = with_head(Weights().served())
    assert list(weights.shapes) == [EMBEDDING, HEAD, *NAMES[1:]] == [name for name, _ in weights.tensors()]
    assert with_head(weights) is weights
    assert weights.largest_bytes == 2 * 3 * 2


@pytest.mark.parametrize("lora", [None, {"rank": 4, "alpha": 8.0}])
def test_what_is_described_to_vllm_is_what_is_sent(tmp_path: Path, lora: dict[str, Any] | None) -> None:
    policy = make_policy(build_model(tmp_path), lora=lora, dtype="bfloat16")
    sent = list(policy.served_state())
    assert [(name, tuple(tensor.shape)) for name, tensor in sent] == list(served_shapes(policy.network).items())
    assert {tensor.dtype for _, tensor in sent} == {policy.dtype}


@dataclass
class FakeSender:
    """Takes some tensors, and fails if it is to."""

    num_taken: int = len(NAMES)
    error: Exception | None = None
    num_closed: int = 0

    def send(self, running: WeightStream) -> None:
        for number, _ in enumerate(running, start=1):
            if number == self.num_taken:
                break
        if self.error is not None:
            raise self.error

    def close(self) -> None:
        self.num_closed += 1


@dataclass
class Opened:
    """Satisfies `OpenSender`."""

    sender: FakeSender = field(default_factory=FakeSender)
    meetings: list[Rendezvous] = field(default_factory=list)
    error: Exception | None = None

    def __call__(
        self, _backend: Backend, _rank: int, _weights: ServedWeights, _link: Link, meeting: Rendezvous
    ) -> Sender:
        self.meetings.append(meeting)
        if self.error is not None:
            raise self.error
        return self.sender


def transfer(weights: Weights, opened: Opened, rank: int = 0) -> RankTransfer:
    return RankTransfer("nccl", rank, weights.served(), 2, opened, lambda: ("10.0.0.1", 77))


def test_ranks_and_workers_meet_once_for_the_same_engines() -> None:
    opened, weights = Opened(), Weights()
    rank = transfer(weights, opened)
    one, two = {"engine-0": FakeActor()}, {"engine-0": FakeActor(), "engine-1": FakeActor()}
    assert [rank.send(one, 1), rank.send(one, 2), rank.send(two, 2)] == [None, None, None]
    assert opened.meetings == [Rendezvous("10.0.0.1", 77, 2), Rendezvous("10.0.0.1", 77, 4)]
    assert opened.sender.num_closed == 1 and weights.taken == [*NAMES] * 3


@pytest.mark.parametrize(
    "opened",
    [Opened(error=TransferError("no meeting")), Opened(FakeSender(num_taken=1, error=TransferError("no meeting")))],
    ids=["nobody came", "left in the middle"],
)
def test_a_rank_goes_through_all_weights_when_an_engine_fails(opened: Opened) -> None:
    weights = Weights()
    assert transfer(weights, opened).send({"engine-0": FakeActor()}, 1) == "no meeting"
    assert weights.taken == [*NAMES], "the other ranks wait for it in every tensor"


def test_nobody_is_waited_for_who_is_gone() -> None:
    opened, weights = Opened(), Weights()
    failure = transfer(weights, opened).send({"engine-0": FakeActor({"is_there": died})}, 1)
    assert failure == "engine-0 failed in is_there: the actor died" and opened.meetings == []
    assert weights.taken == [*NAMES]


def test_what_fails_on_a_rank_is_no_engine_s_fault() -> None:
    with pytest.raises(RuntimeError, match="a rank is gone"):
        transfer(Weights(fails_at=NAMES[1]), Opened()).send({"engine-0": FakeActor()}, 1)
    collective = Opened(FakeSender(error=RuntimeError("a collective was left")))
    with pytest.raises(RuntimeError, match="a collective was left"):
        transfer(Weights(), collective, rank=1).send({"engine-0": FakeActor()}, 1)


@dataclass
class FakeLink:
    fails_in: str
    asked: list[str] = field(default_factory=list)

    def _ask(self, what: str) -> None:
        self.asked.append(what)
        if what == self.fails_in:
            raise TransferError(what)

    def init_weight_transfer_engine(self, _init_info: dict[str, Any]) -> None:
        self._ask("init")

    def start_weight_update(self) -> None:
        self._ask("start")

    def update_weights(self, _update_info: Any) -> None:
        self._ask("update")

    def finish_weight_update(self, _weight_version: str | None = None) -> None:
        self._ask("finish")


def test_ranks_in_step_are_not_left_by_one_that_raises() -> None:
    link = FakeLink("start")
    checked = ErrorKeepingLink(link)
    checked.init_weight_transfer_engine({})
    checked.start_weight_update()
    checked.update_weights({})
    checked.finish_weight_update()
    assert link.asked == ["init", "start"] and str(checked.failure) == "start"


def test_a_sender_is_called_out_of_a_broadcast_that_an_engine_left() -> None:
    aborted: list[bool] = []
    alarmed = AbortingLink(FakeLink("update"))
    alarmed.abort = lambda: aborted.append(True)
    alarmed.start_weight_update()
    assert not aborted
    with pytest.raises(TransferError, match="update"):
        alarmed.update_weights({})
    assert aborted


@dataclass
class FakeLearner:
    failure: str | None
    sent: list[tuple[Any, ...]] = field(default_factory=list)

    async def send_weights(self, *arguments: Any) -> str | None:
        self.sent.append(arguments)
        return self.failure


async def test_a_transfer_that_fails_leaves_none_of_its_engines_with_weights() -> None:
    learner: Any = FakeLearner("engine-1 failed in receive")
    courier = VllmTransferSync(learner, "nccl", 1)
    engines = {"engine-0": 0, "engine-1": 1}
    assert await courier.deliver(engines, 5) == dict.fromkeys(engines, "engine-1 failed in receive")
    learner.failure = None
    assert await courier.deliver(engines, 6) == {}
    assert await courier.deliver({}, 7) == {}
    assert learner.sent == [(engines, 5, "nccl", 1), (engines, 6, "nccl", 1)], "nothing is sent to nobody"
