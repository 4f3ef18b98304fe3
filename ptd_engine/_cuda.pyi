"""CUDA kernels by address (csrc/bindings/cuda_module.cpp); only where it was built with CUDA.

Addresses and streams are integers, 0 for none; dtypes 0 float32, 1 float16, 2 bfloat16. What each
argument points to stands in csrc/include/ptd/cuda. A launch that fails raises RuntimeError.
"""

MAX_TREE_ROWS: int
MAX_SUCCESSORS: int
MAX_VOCAB: int

def device_count() -> int:
    """Return the number of GPUs, 0 without a driver."""

def compute_capability(device: int) -> int:
    """Return 80 for sm_80, and so on."""

def shared_memory(device: int) -> int:
    """Bytes of shared memory that one block may have."""

def attention_tile(dtype: int, head_dim: int) -> int:
    """Positions of a tile, of which `split_tiles` make a split."""

def attention_shared(dtype: int, head_dim: int) -> tuple[int, int]:
    """Bytes of shared memory of a block over the prefix and of one over the tree."""

def attention_workspace_bytes(
    dtype: int, rows: int, q_heads: int, head_dim: int, split_tiles: int, kv_bound: int
) -> int:
    """Bytes that `tree_attention` needs at `workspace`."""

def tree_attention(
    dtype: int,
    rows: int,
    q_heads: int,
    kv_heads: int,
    head_dim: int,
    split_tiles: int,
    kv_bound: int,
    kv_head_stride: int,
    kv_row_stride: int,
    scale: float,
    q: int,
    k_cache: int,
    v_cache: int,
    mask: int,
    prefix_len: int,
    prefix_offset: int,
    workspace: int,
    out: int,
    stream: int,
) -> None:
    """See ptd/cuda/tree_attention.h; mask 0: a chain."""

def rope_kv_write(
    dtype: int,
    rows: int,
    q_heads: int,
    kv_heads: int,
    head_dim: int,
    eps: float,
    kv_head_stride: int,
    kv_row_stride: int,
    qkv: int,
    q_norm: int,
    k_norm: int,
    cos_sin: int,
    positions: int,
    prefix_len: int,
    k_cache: int,
    v_cache: int,
    q_out: int,
    stream: int,
) -> None:
    """See ptd/cuda/rope_kv_write.h."""

def kv_commit(
    element_size: int,
    layers: int,
    kv_heads: int,
    head_dim: int,
    max_commit: int,
    layer_stride: int,
    head_stride: int,
    row_stride: int,
    k_cache: int,
    v_cache: int,
    commit_src: int,
    prefix_len: int,
    n_commit: int,
    stream: int,
) -> None:
    """See ptd/cuda/kv_commit.h."""

def select(
    dtype: int,
    mode: int,
    rows: int,
    vocab: int,
    n_verify: int,
    successors: int,
    logits_stride: int,
    next_stride: int,
    logits: int,
    temperature: int,
    uniform: int,
    sampling: int,
    next: int,
    stream: int,
) -> None:
    """See ptd/cuda/select.h; mode 0 greedy, 1 sample, 2 filter."""

def add_rms_norm(
    dtype: int,
    rows: int,
    hidden: int,
    eps: float,
    x: int,
    residual: int,
    weight: int,
    out: int,
    stream: int,
) -> None:
    """See ptd/cuda/pointwise.h."""

def silu_mul(dtype: int, rows: int, inner: int, gate_up: int, out: int, stream: int) -> None:
    """See ptd/cuda/pointwise.h."""
