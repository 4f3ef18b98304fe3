"""The headers of the CUDA launchers, as a C++ service includes them: alone, and without nvcc."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.kernels.cuda_host import CSRC

HEADERS = sorted(path.name for path in (CSRC / "include/ptd/cuda").glob("*.h"))
TOOLKIT = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "include"
SERVICE = """
#include <initializer_list>

#include "ptd/cuda/kv_commit.h"
#include "ptd/cuda/pointwise.h"
#include "ptd/cuda/rope_kv_write.h"
#include "ptd/cuda/select.h"
#include "ptd/cuda/tree_attention.h"

cudaError_t step(ptd::cuda::TreeAttentionParams attention, ptd::cuda::SelectParams choice,
                 ptd::cuda::KVCommitParams commit, cudaStream_t stream) {
  static_assert(ptd::cuda::kMaxTreeRows >= 256, "");
  attention.dtype = ptd::cuda::DType::kBFloat16;
  if (ptd::cuda::attention_workspace_bytes(attention) < 0) return cudaErrorInvalidValue;
  const ptd::cuda::SiluMulParams silu{ptd::cuda::DType::kFloat16, 1, 64, nullptr, nullptr};
  const ptd::cuda::AddRMSNormParams norm{};
  const ptd::cuda::RopeKVWriteParams rope{};
  for (const cudaError_t error :
       {ptd::cuda::add_rms_norm(norm, stream), ptd::cuda::rope_kv_write(rope, stream),
        ptd::cuda::tree_attention(attention, stream), ptd::cuda::silu_mul(silu, stream),
        ptd::cuda::select(choice, stream), ptd::cuda::kv_commit(commit, stream)}) {
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}
"""


def check(source: str, runtime: Path, folder: Path) -> None:
    """What a C++17 compiler says of a source, with CUDA's headers from `runtime`."""
    path = folder / "service.cpp"
    path.write_text(source, encoding="utf-8")
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("c++")
    assert compiler, "a C++ compiler built ptd_engine"
    flags = ("-std=c++17", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only")
    includes = (f"-I{CSRC / 'include'}", "-isystem", str(runtime))
    command = [compiler, *flags, *includes, str(path)]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("header", HEADERS)
def test_each_header_stands_alone(header: str, tmp_path: Path) -> None:
    check(f'#include "ptd/cuda/{header}"\n', CSRC / "tests/cuda_shim", tmp_path)


@pytest.mark.parametrize("runtime", ["shim", "toolkit"])
def test_a_service_calls_every_launcher(runtime: str, tmp_path: Path) -> None:
    if runtime == "toolkit" and not (TOOLKIT / "cuda_runtime_api.h").is_file():
        pytest.skip(f"no CUDA toolkit at {TOOLKIT}: the shim's headers stand in for it")
    check(SERVICE, TOOLKIT if runtime == "toolkit" else CSRC / "tests/cuda_shim", tmp_path)
