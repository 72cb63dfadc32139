"""Problems and conversations: generated, from the catalog, the hub or a file; curated, and their golds proved.

Promise: the same source, name and seed give the same rows on every machine; a row that cannot be used is an error that
names it, never skipped, and an error names all of them; what was downloaded once stays the same bytes. Works without
torch.
May import: records, grading, config, models, environments.
"""

from rstar2.data.benchmarks import FunctionCallTask, InstructionTask, MultiTurnCallTask
from rstar2.data.by_name import grading_of, load_any, load_any_problems
from rstar2.data.catalog import CATALOG, find_set
from rstar2.data.catalog_set import CatalogSet, Grading, SetKind
from rstar2.data.conversation import Conversation
from rstar2.data.curate import Curated, CurationRules, Reason, Rejected, curate
from rstar2.data.curriculum import Curriculum, DataReading, examine_data, load_curriculum, require_short_prompts
from rstar2.data.decontaminate import BenchmarkGrams, Overlap
from rstar2.data.load import find_files, get_set, load_benchmark, load_conversations, load_problems
from rstar2.data.pass_rates import PassRate, read_pass_rates
from rstar2.data.validate import Failure, validate, validate_conversations

__all__ = [
    "CATALOG",
    "BenchmarkGrams",
    "CatalogSet",
    "Conversation",
    "Curated",
    "CurationRules",
    "Curriculum",
    "DataReading",
    "Failure",
    "FunctionCallTask",
    "Grading",
    "InstructionTask",
    "MultiTurnCallTask",
    "Overlap",
    "PassRate",
    "Reason",
    "Rejected",
    "SetKind",
    "curate",
    "examine_data",
    "find_files",
    "find_set",
    "get_set",
    "grading_of",
    "load_any",
    "load_any_problems",
    "load_benchmark",
    "load_conversations",
    "load_curriculum",
    "load_problems",
    "read_pass_rates",
    "require_short_prompts",
    "validate",
    "validate_conversations",
]
