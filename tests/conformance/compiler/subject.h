/* A compiler under test: on a plugin, the fake one or XLA on the CPU, or on the
 * simulated device. */
#ifndef TOW_TESTS_CONFORMANCE_COMPILER_SUBJECT_H_
#define TOW_TESTS_CONFORMANCE_COMPILER_SUBJECT_H_

#include "device/compiler/compiler.h"

typedef struct subject {
    tow_program_format_t format;
    const char *device_kind;
    const char *program; /* adds two f32[4] */
    const char *malformed;
    const char *complaint; /* text of the error for the malformed one */
} subject_t;

extern const subject_t subject;

tow_compiler_t *subject_open(size_t queue_count_max);
/* After the compiler has closed. */
void subject_close(void);

/* Of the plugin; skips the test if there is none. */
const char *subject_plugin(void);

#endif /* TOW_TESTS_CONFORMANCE_COMPILER_SUBJECT_H_ */
