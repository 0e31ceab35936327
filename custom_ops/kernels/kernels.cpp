// Every kernel, in one translation unit per machine. A new kernel is one line here.
#include "attention_general_kernel.h"
#include "attention_kernel.h"
#include "bias_add_kernel.h"
#include "bias_split_gelu_kernel.h"
#include "group_norm_general_kernel.h"
#include "group_norm_kernel.h"
#if SDORT_COOPERATIVE
#include "group_norm_together_kernel.h"
#endif
#include "group_norm_two_launches_kernel.h"
#include "skip_layer_norm_kernel.h"
