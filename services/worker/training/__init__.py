"""Training a policy from governed experience: one job in, one PEFT adapter and its evidence out.

`run` is the command, `job` what it is told, `examples` what it learns from, `packing` how examples
share their common prefix, `sft` the loss, `loop` the optimisation (Accelerate, LoRA, exactly
resumable) and `probe` the fingerprint by which the serving side proves it serves what was trained.

Left out on purpose: multi-node training, mixed precision (bf16 backward is many times slower than
fp32 on CPUs without native bf16 support, and serving in fp32 agrees with training to 1e-4 nats).
"""
