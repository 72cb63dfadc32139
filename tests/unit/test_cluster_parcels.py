"""Weights survive their way to the engines, bit for bit."""

import pickle

import pytest
import torch

from rstar2.cluster import parcels as module

pytestmark = pytest.mark.unit


def test_what_is_unpacked_is_what_was_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PARCEL_BYTES", 100)
    state = {
        "a": torch.randn(7, 5),
        "b": torch.randn(3, 4).to(torch.bfloat16).t(),
        "c": torch.tensor(1.5),
        "d": torch.arange(40, dtype=torch.int64),
    }
    parcels = [pickle.loads(pickle.dumps(parcel)) for parcel in module.parcels(state.items())]
    assert [len(parcel) for parcel in parcels] == [1, 3]
    found = dict(pair for parcel in parcels for pair in module.unpack(parcel))
    assert found.keys() == state.keys()
    for name, tensor in state.items():
        assert found[name].dtype is tensor.dtype and torch.equal(found[name], tensor)
