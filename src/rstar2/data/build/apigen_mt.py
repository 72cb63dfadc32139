"""APIGen-MT: ShareGPT turns with `function_call` and `observation`, tools as JSON in a text, a policy as system text.
Pure."""

from rstar2.data.build.source import BuildSource
from rstar2.data.build.turns import conversation_of, with_system
from rstar2.data.catalog_set import HubSource
from rstar2.data.cells import optional_text
from rstar2.data.conversation import Conversation
from rstar2.data.conversation_rows import conversations_of
from rstar2.data.rows import Row


def convert(row: Row) -> Conversation:
    (found,) = conversations_of([row], "row")
    system = optional_text(row, ("system",)) or ""
    return conversation_of(with_system(found.messages, system), found.tools)


APIGEN_MT = BuildSource(
    file="sft-function-calls",
    hub=HubSource(
        "Salesforce/APIGen-MT-5k",
        "abc4a517d67c541f85f6470cbd8fd3186b36830e",
        ("apigen-mt_5k.json",),
        is_gated=True,
    ),
    num_rows=5_000,
    licence="CC BY-NC 4.0",
    convert=convert,
)
