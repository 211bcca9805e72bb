"""The control loop as Prefect flows: monitor, evolve, deliver, rollback. Nothing imports this package.

Every run is a process of its own, so heavy libraries are imported where they are used.
"""
