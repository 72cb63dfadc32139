#!/usr/bin/env bash
# Shows what the system does on this machine, in about a minute. `quickstart.sh PATH_TO_RSTAR2`
set -euo pipefail
rstar2="$1"
folder="$(cd "$(dirname "$0")/.." && pwd)"

echo "== 1. What this machine can do"
"$rstar2" doctor --offline || {
    echo "This machine lacks something that the core needs; the table above says what and how to get it." >&2
    exit 1
}

echo
echo "== 2. A whole training run is one file: the quickstart recipe, checked and resolved"
"$rstar2" recipe check "$folder/recipes/quickstart.toml"

echo
echo "== 3. Untrusted Python, isolated, with numpy and sympy already loaded"
"$rstar2" sandbox run "$folder/examples/modular_powers.py"

echo
echo "== 4. The same thousands of times: isolated executions beside plain subprocesses, on the same cores"
"$rstar2" sandbox bench --quick --only print,sympy,latency,session

echo
echo "== 5. A model that calls the tool, reads the result and answers (a scripted policy: no weights needed)"
"$rstar2" solve --script "$folder/examples/solve_script.txt" "What is 7^2025 modulo 1000?"

echo
echo "Next: README.md, 'Where to go next'."
