/* Device models: the speed of computation, memory and links.
 *
 * models.csv has the built-in models, each number with its source. A file of
 * the same format may be given at run time. All numbers are integers, and so
 * are the times computed from them: all machines simulate alike. */
#ifndef TOW_DEVICE_SIM_MODEL_H_
#define TOW_DEVICE_SIM_MODEL_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "device/device.h"

#define TOW_SIM_MODEL_NAME_MAX 63
/* Element types by number, as in tow_type_t. */
#define TOW_SIM_MODEL_TYPE_COUNT 48

/* A value; owns nothing. */
typedef struct tow_sim_model {
    char name[TOW_SIM_MODEL_NAME_MAX + 1]; /* "tpu_v4" */
    char kind[TOW_SIM_MODEL_NAME_MAX + 1]; /* "TPU v4" */
    uint64_t memory_bytes;
    uint64_t memory_bytes_per_second;
    uint64_t flops_per_second[TOW_SIM_MODEL_TYPE_COUNT]; /* 0: unknown */
    uint64_t link_bytes_per_second;                      /* out of a device */
    uint64_t link_latency_ns; /* one step of a collective */
    uint64_t host_bytes_per_second;
    uint64_t host_latency_ns;
    uint64_t launch_ns; /* from the queue to the first instruction */
} tow_sim_model_t;

/* A built-in one. NOT_FOUND names them all. */
tow_status_t tow_sim_model_find(const char *name, tow_sim_model_t *out_model)
    TOW_MUST_USE;
/* The same from a file, all of which is checked. INVALID_ARGUMENT names the
 * line and the error. */
tow_status_t tow_sim_model_load(const char *path, const char *name,
                                tow_sim_model_t *out_model) TOW_MUST_USE;
/* The same from text; `what` names it in messages. */
tow_status_t tow_sim_model_parse(const char *text, size_t size,
                                 const char *what, const char *name,
                                 tow_sim_model_t *out_model) TOW_MUST_USE;

/* Names of the built-in models, in the order of the file; NULL after the last
 * one. The text is copied into `out_name`. */
bool tow_sim_model_name(size_t index,
                        char out_name[TOW_SIM_MODEL_NAME_MAX + 1]);

/* -- Times ----------------------------------------------------------------- */

#define TOW_SIM_NS_MAX ((uint64_t)INT64_MAX / 4)

/* ceil(amount * 10^9 / per_second), at most TOW_SIM_NS_MAX (73 years), so that
 * sums with a clock never wrap. `per_second` is above 0. */
uint64_t tow_sim_ns_at_rate(uint64_t amount, uint64_t per_second);
/* a + b, at most TOW_SIM_NS_MAX. */
uint64_t tow_sim_ns_add(uint64_t a, uint64_t b);

/* Kinds of collectives, in the cost format and in models. */
typedef enum tow_sim_collective_kind {
    TOW_SIM_ALL_REDUCE,
    TOW_SIM_REDUCE_SCATTER,
    TOW_SIM_ALL_GATHER,
    TOW_SIM_ALL_TO_ALL,
    TOW_SIM_PERMUTE,
    TOW_SIM_BROADCAST,
    TOW_SIM_BARRIER,
    TOW_SIM_COLLECTIVE_KIND_COUNT,
} tow_sim_collective_kind_t;

/* "all_reduce". Static. */
const char *tow_sim_collective_name(tow_sim_collective_kind_t kind);

/* The time after all members have arrived; README.md has the formulas. `bytes`
 * is the whole array of one member: the larger one of operand and result. */
uint64_t tow_sim_model_collective_ns(const tow_sim_model_t *model,
                                     tow_sim_collective_kind_t kind,
                                     uint64_t bytes, uint64_t member_count);

#endif /* TOW_DEVICE_SIM_MODEL_H_ */
