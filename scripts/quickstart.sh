#!/usr/bin/env bash
# From nothing to an agent on this machine, in at most ten minutes on 2 cores. `quickstart.sh PATH_TO_RSTAR2 [ARGS]`
# Further arguments go to `rstar2 train` (for instance --set seed=1).
set -euo pipefail
rstar2="$1"
shift

echo "== 1. What this machine can do"
"$rstar2" doctor --offline || {
    echo "This machine lacks something that the core needs; the table above says what and how to get it." >&2
    exit 1
}

echo
echo "== 2. A tiny model learns to think with code: format first, then GRPO-RoC in three stages"
"$rstar2" train quickstart "$@"

echo
echo "Open the report in a browser, or look at every rollout: $rstar2 view RUN"
echo "Ask what was trained: $rstar2 solve --model RUN/final 'What is 6162 times 8920?'"
echo "Next: README.md, 'Where to go next'."
