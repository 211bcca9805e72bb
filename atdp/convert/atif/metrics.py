"""ATIF's metrics, and where a record has them."""

METRICS = {
    "prompt_tokens": ("m", "usage", "input_tokens"),
    "completion_tokens": ("m", "usage", "output_tokens"),
    "cached_tokens": ("m", "usage", "cache_read_input_tokens"),
    "cost_usd": ("m", "cost_usd"),
    "prompt_token_ids": ("tokens", "prompt_token_ids"),
    "completion_token_ids": ("tokens", "completion_token_ids"),
    "logprobs": ("tokens", "logprobs"),
}
"""ATIF's metric, and where a record has it."""
