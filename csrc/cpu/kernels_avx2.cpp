#define PTD_ISA_LEVEL 1
#define PTD_ISA_NAMESPACE avx2
#include "kernel_table.h"
