// The attention kernels in float32; see attention_prefix.cuh and attention_tree.cuh.
#include "attention_launch.cuh"

namespace ptd::cuda {

cudaError_t tree_attention_f32(const TreeAttentionParams& params, cudaStream_t stream) {
  return attention_of_type<float>(params, stream);
}

}  // namespace ptd::cuda
