#define PTD_ISA_LEVEL 0
#define PTD_ISA_NAMESPACE scalar
#include "kernel_table.h"
