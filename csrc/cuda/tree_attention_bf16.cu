// The attention kernels in bfloat16; see attention_prefix.cuh and attention_tree.cuh.
#include "attention_launch.cuh"

namespace ptd::cuda {

cudaError_t tree_attention_bf16(const TreeAttentionParams& params, cudaStream_t stream) {
  return attention_of_type<__nv_bfloat16>(params, stream);
}

}  // namespace ptd::cuda
