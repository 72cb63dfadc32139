"""Tulu 3's persona instructions: one request with checkable constraints, and a response. Pure."""

from rstar2.data.build.source import BuildSource
from rstar2.data.build.turns import conversation_of, with_system
from rstar2.data.catalog_set import HubSource
from rstar2.data.conversation import Conversation
from rstar2.data.conversation_rows import conversations_of
from rstar2.data.rows import Row


def convert(row: Row) -> Conversation:
    (found,) = conversations_of([row], "row")
    return conversation_of(with_system(found.messages))


TULU = BuildSource(
    file="sft-instructions",
    hub=HubSource(
        "allenai/tulu-3-sft-personas-instruction-following",
        "fe0c7d350c9b4542b8d829a6f1daa1c259f0ba0e",
        ("data/train-*.parquet",),
    ),
    num_rows=29_980,
    licence="ODC-BY 1.0",
    convert=convert,
    columns=("id", "messages"),
)
