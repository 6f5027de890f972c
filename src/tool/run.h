/* `tow run`: one program, on a cluster or directly on a driver in this process. */
#ifndef TOW_TOOL_RUN_H_
#define TOW_TOOL_RUN_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <towpath/towpath.h>

#include "base/macros.h"
#include "device/device.h"

typedef struct tow_run_request {
    const void *program;
    size_t program_size;
    const char *path;          /* for messages */
    const char *const *inputs; /* as tow_literal_parse takes them */
    size_t input_count;
    size_t device_count; /* 0: all, on a cluster */
    size_t repeat_count;
    bool is_cost; /* a cost program, for simulated devices */
    bool json;
} tow_run_request_t;

/* Replicates every input to all devices of a slice of `client`, runs the program
 * and prints results and timings. */
tow_status_t tow_run_on_cluster(tow_client_t *client,
                                const tow_run_request_t *request) TOW_MUST_USE;

/* The same on a PJRT plugin that this process loads; NULL: XLA on the CPU.
 * `in_process`: compile in this process instead of a child. */
tow_status_t tow_run_on_driver(const tow_run_request_t *request,
                               const char *plugin, bool in_process)
    TOW_MUST_USE;

/* -- Output (run_output.c) ---------------------------------------------------- */

typedef struct tow_run_timings {
    double compile_ms;
    double first_us;
    double median_us; /* over all repetitions */
} tow_run_timings_t;

/* Prints a result of a device as text or as a JSON object. */
void tow_run_print_value(const tow_run_request_t *request, size_t device,
                         size_t result, const tow_shape_t *shape,
                         const void *bytes);
/* `place` is the text after "on N device(s) of". */
void tow_run_print_timings(const tow_run_request_t *request,
                           const tow_run_timings_t *timings,
                           size_t device_count, const char *place,
                           bool is_simulated);

#endif /* TOW_TOOL_RUN_H_ */
