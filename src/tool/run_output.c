#include <stdio.h>

#include "tool/literal.h"
#include "tool/run.h"

/* Elements of a result that are printed. */
#define PRINTED_ELEMENTS_MAX 64

void tow_run_print_value(const tow_run_request_t *request, size_t device,
                         size_t result, const tow_shape_t *shape,
                         const void *bytes)
{
    printf(request->json ? "{\"device\":%zu,\"result\":%zu,\"value\":\""
                         : "device %zu result %zu ",
           device, result);
    tow_literal_print(stdout, shape, bytes, PRINTED_ELEMENTS_MAX);
    printf(request->json ? "\"}\n" : "\n");
}

void tow_run_print_timings(const tow_run_request_t *request,
                           const tow_run_timings_t *timings,
                           size_t device_count, const char *place,
                           bool is_simulated)
{
    if (request->json)
        printf("{\"compile_ms\":%.3f,\"first_run_us\":%.2f,\"run_us\":%.2f,"
               "\"runs\":%zu,\"devices\":%zu,\"simulated\":%s}\n",
               timings->compile_ms, timings->first_us, timings->median_us,
               request->repeat_count, device_count,
               is_simulated ? "true" : "false");
    else
        printf("compiled in %.1f ms; first run %.1f us, median of %zu %.1f us "
               "on %zu device(s) of %s%s\n",
               timings->compile_ms, timings->first_us, request->repeat_count,
               timings->median_us, device_count, place,
               is_simulated ? " (simulated)" : "");
}
