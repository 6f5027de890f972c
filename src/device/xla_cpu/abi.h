/* The version of xla_cpu.h that a program or an adapter was built with.
 *
 * Most structs of xla_cpu.h carry no version of their own, so two sides built
 * from different versions would misread each other's memory. The adapter
 * exports tow_xla_abi, and the driver refuses an adapter whose number differs
 * from its own. A separate file, so that a new number does not recompile XLA's
 * headers. */
#ifndef TOW_DEVICE_XLA_CPU_ABI_H_
#define TOW_DEVICE_XLA_CPU_ABI_H_

#include "device/xla_cpu/xla_cpu.h"

/* Increment it with each change of xla_cpu.h that leaves the sizes as they are:
 * another meaning of a field or of an option. */
#define TOW_XLA_ABI_VERSION 1u

/* The version, and a hash of the sizes of the structs in xla_cpu.h. */
static inline uint64_t tow_xla_abi_number(void)
{
    const size_t sizes[] = {
        sizeof(tow_xla_fiber_ops_t),       sizeof(tow_xla_collective_t),
        sizeof(tow_xla_array_t),           sizeof(tow_xla_execute_options_t),
        sizeof(tow_xla_signature_t),       sizeof(tow_xla_collectives_t),
        sizeof(tow_xla_extension_t),       sizeof(tow_xla_executed_t),
        sizeof(tow_xla_partition_query_t), sizeof(tow_xla_partition_reply_t),
    };
    uint32_t sum = 0;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        sum = sum * 31 + (uint32_t)sizes[i];
    return (uint64_t)TOW_XLA_ABI_VERSION << 32 | sum;
}

uint64_t tow_xla_abi(void);

#endif /* TOW_DEVICE_XLA_CPU_ABI_H_ */
