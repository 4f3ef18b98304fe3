"""Triton kernels of the forward pass, for NVIDIA GPUs; imported as `ptd_engine.triton_kernels`.

A leaf package: it knows torch and Triton and nothing of ptd_engine. `ptd_engine.kernels.triton_ops`
gives its launchers the contracts of `ptd_engine.kernels.ops`.
"""
