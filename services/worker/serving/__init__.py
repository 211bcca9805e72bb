"""Serving policies: the base model and its adapters on one vLLM server that the worker owns."""
