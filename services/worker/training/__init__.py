"""Training a policy from governed experience: one job in, one adapter (or model) and its evidence out.

`run` is the command and `job` what it is told. Rows: `examples` (their form), `staleness`, `returns`. What is
learned from them: `algorithms`, one file each, on a `batch` of token log-probabilities. How: `batches` and
`packing` (shared prefixes once), `policy` and `logprobs` (the model), `scoring` (starting weights, reference,
teacher), `loop` (Accelerate), `checkpoint` (exactly resumable), `export`. What stops it: `agreement` of server
and trainer, `reward_watch`. `probe` is the fingerprint by which the serving side proves it serves what was
trained.

Left out on purpose: mixed precision (bf16 backward is many times slower than fp32 on CPUs without native bf16
support, and serving in fp32 agrees with training to 1e-4 nats); sampling (rows come from what agents did).
"""
