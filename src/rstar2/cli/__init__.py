"""The command line: one verb a file, heavy imports inside the verbs so that `--help` is instant.

May import: records, sandbox, engine, grading, config, models, analysis, agent, rollout, data, evals, train, web,
doctor, cluster, plan.
"""
