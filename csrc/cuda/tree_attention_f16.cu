// The attention kernels in float16; see attention_prefix.cuh and attention_tree.cuh.
#include "attention_launch.cuh"

namespace ptd::cuda {

cudaError_t tree_attention_f16(const TreeAttentionParams& params, cudaStream_t stream) {
  return attention_of_type<__half>(params, stream);
}

}  // namespace ptd::cuda
