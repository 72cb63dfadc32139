"""Engines and rollouts in separate processes, so that they share no interpreter.

Promise: a `SharedEngine` yields what the engine in the child sampled, in order; a child that dies raises an
`InfrastructureError` in everything that awaits it; a child never outlives the process that started it.
"""
