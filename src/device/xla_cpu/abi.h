/* Which form of xla_cpu.h a program or an adapter was built with.
 *
 * Its structs have no versions of their own: two sides that differ would read each
 * other's memory wrongly. The adapter exports tow_xla_abi, and the driver refuses
 * one that says another number than its own. A file of its own, so that a new
 * number does not compile XLA's headers again. */
#ifndef TOW_DEVICE_XLA_CPU_ABI_H_
#define TOW_DEVICE_XLA_CPU_ABI_H_

#include "device/xla_cpu/xla_cpu.h"

/* Counts up with each change of xla_cpu.h that sizes do not show: another meaning
 * of a field or of an option. */
#define TOW_XLA_ABI_VERSION 1u

/* The version, and the sizes of what crosses the border. */
static inline uint64_t tow_xla_abi_number(void)
{
    const size_t sizes[] = {
        sizeof(tow_xla_turns_t),     sizeof(tow_xla_collective_t),
        sizeof(tow_xla_array_t),     sizeof(tow_xla_execute_options_t),
        sizeof(tow_xla_signature_t), sizeof(tow_xla_collectives_t),
        sizeof(tow_xla_extension_t), sizeof(tow_xla_executed_t),
        sizeof(tow_xla_question_t),  sizeof(tow_xla_answer_t),
    };
    uint32_t sum = 0;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        sum = sum * 31 + (uint32_t)sizes[i];
    return (uint64_t)TOW_XLA_ABI_VERSION << 32 | sum;
}

uint64_t tow_xla_abi(void);

#endif /* TOW_DEVICE_XLA_CPU_ABI_H_ */
