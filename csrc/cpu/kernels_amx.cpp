#define PTD_ISA_LEVEL 4
#define PTD_ISA_NAMESPACE amx
#include "kernel_table.h"
