"""Judgement without side effects: pure functions over recorded experience.

Nothing here starts a flow, talks to a registry or calls a model; flows do, and hand over what they read.
"""
