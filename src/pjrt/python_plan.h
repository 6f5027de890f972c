/* Functions of libtowpath_pjrt.so that the Python package calls through ctypes:
 * pipeline schedules. Pure: they need no cluster. Each returns NULL on success,
 * else a text "CODE: message", which towpath_text_free (python_api.h) frees. */
#ifndef TOW_PJRT_PYTHON_PLAN_H_
#define TOW_PJRT_PYTHON_PLAN_H_

#include <stddef.h>
#include <stdint.h>

#include "pjrt/python_api.h"

/* A known schedule (plan/schedule/generate.h), checked, as CSV; `chunks` is 0
 * where it does not apply; `warmup` 0 or 1: DAPPLE's A or B. `*out_csv`:
 * towpath_text_free. */
TOWPATH_EXPORT char *towpath_schedule_generate(
    const char *name, uint32_t devices, uint32_t microbatches, uint32_t chunks,
    uint32_t warmup, uint32_t recompute, char **out_csv);
/* The nodes of a schedule for a pipeline, both in the form of
 * plan/schedule/words.h. `*out_words`: towpath_text_free. */
TOWPATH_EXPORT char *towpath_schedule_nodes(const char *csv,
                                            const uint32_t *pipeline,
                                            size_t count, uint32_t **out_words,
                                            size_t *out_count);

#endif /* TOW_PJRT_PYTHON_PLAN_H_ */
