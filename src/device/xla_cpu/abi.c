#include "device/xla_cpu/abi.h"

__attribute__((visibility("default"))) uint64_t tow_xla_abi(void)
{
    return tow_xla_abi_number();
}
