#define PTD_ISA_LEVEL 2
#define PTD_ISA_NAMESPACE avx512
#include "kernel_table.h"
