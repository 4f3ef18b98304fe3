#define PTD_ISA_LEVEL 3
#define PTD_ISA_NAMESPACE avx512_bf16
#include "kernel_table.h"
