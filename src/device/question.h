/* Questions of compilers to their clients, and the answers, as bytes:
 * PartitionQuestion and PartitionAnswer of src/wire/towpath.proto. So they cross
 * from the process that compiles to the one whose functions are asked. */
#ifndef TOW_DEVICE_QUESTION_H_
#define TOW_DEVICE_QUESTION_H_

#include <stddef.h>

#include "base/arena.h"
#include "device/device.h"
#include "device/xla_cpu/xla_cpu.h"

/* The bytes are the caller's; tow_free. OUT_OF_RANGE for more than the message
 * may have. */
tow_status_t tow_question_pack(const tow_xla_question_t *question,
                               void **out_bytes, size_t *out_size) TOW_MUST_USE;
tow_status_t tow_answer_pack(const tow_xla_answer_t *answer, void **out_bytes,
                             size_t *out_size) TOW_MUST_USE;

/* The reverse, from anyone: all that it points to lives in the arena. What shapes,
 * shardings and programs are is not looked at. INVALID_ARGUMENT. */
tow_status_t tow_question_unpack(tow_bytes_t bytes, tow_arena_t *arena,
                                 tow_xla_question_t *out_question) TOW_MUST_USE;
tow_status_t tow_answer_unpack(tow_bytes_t bytes, tow_arena_t *arena,
                               tow_xla_answer_t *out_answer) TOW_MUST_USE;

#endif /* TOW_DEVICE_QUESTION_H_ */
