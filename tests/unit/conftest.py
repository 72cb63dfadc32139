"""What several files start from."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def tiny_policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the model that `train_models.make_policy` loads. It is only read."""
    from train_models import build_model

    return build_model(tmp_path_factory.mktemp("tiny"))
