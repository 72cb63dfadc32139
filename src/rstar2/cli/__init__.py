"""The command line: one verb a file, heavy imports inside the verbs so that `--help` is instant.

May import: records, sandbox, engine, grading, config, models, analysis, agent, environments, rollout, data, evals,
train, serve, web, doctor, cluster, plan.
"""
