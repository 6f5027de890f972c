/* Pipeline schedules as data: for each device, the list of actions that it
 * performs in one training step, in order.
 *
 * A model is cut into stages, a batch into microbatches. A device has one stage
 * or several (chunks). A schedule says nothing about time: a device starts an
 * action when the action before it has ended and its inputs have arrived.
 * Generators (generate.h) and files (csv.h) make schedules, check.h rejects
 * those that cannot run, simulate.h adds times, and nodes.h makes the nodes of
 * a program.
 *
 * Everything in this folder is a pure function: no I/O, no clock, no globals,
 * integers only. */
#ifndef TOW_PLAN_SCHEDULE_SCHEDULE_H_
#define TOW_PLAN_SCHEDULE_SCHEDULE_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/macros.h"
#include "base/status.h"
#include "base/vec.h"

/* Bounds on what files and users may ask for. With TOW_PLAN_TIME_NS_MAX and
 * TOW_PLAN_BYTES_MAX (cost.h) they keep every sum within 63 bits. */
#define TOW_PLAN_DEVICE_COUNT_MAX 4096
#define TOW_PLAN_STAGE_COUNT_MAX  4096
#define TOW_PLAN_MICROBATCH_MAX   65536
#define TOW_PLAN_ACTION_COUNT_MAX ((size_t)1 << 20)

#define TOW_PLAN_NONE UINT32_MAX

typedef enum tow_plan_action_kind {
    TOW_PLAN_FORWARD,
    TOW_PLAN_BACKWARD,      /* gradients of inputs and of weights */
    TOW_PLAN_INPUT_GRAD,    /* first half of a backward: of inputs */
    TOW_PLAN_WEIGHT_GRAD,   /* second half: of weights */
    TOW_PLAN_RECOMPUTE,     /* the forward again, from its kept inputs */
    TOW_PLAN_SEND_FORWARD,  /* activations to the stages that need them */
    TOW_PLAN_SEND_BACKWARD, /* cotangents to the stages before */
    TOW_PLAN_ALL_REDUCE,    /* gradients of a stage; no microbatch */
    TOW_PLAN_UPDATE,        /* parameters of a stage; no microbatch */
    TOW_PLAN_ACTION_KIND_COUNT,
} tow_plan_action_kind_t;

/* Kinds before this one have a microbatch. */
#define TOW_PLAN_MICROBATCH_KIND_COUNT TOW_PLAN_ALL_REDUCE

typedef struct tow_plan_action {
    tow_plan_action_kind_t kind;
    uint32_t stage;
    uint32_t microbatch; /* TOW_PLAN_NONE where the kind has none */
} tow_plan_action_t;

typedef TOW_VEC(tow_plan_action_t) tow_plan_actions_t;

typedef struct tow_plan_shape {
    uint32_t device_count;
    uint32_t stage_count;
    uint32_t microbatch_count;
} tow_plan_shape_t;

typedef struct tow_plan_schedule {
    tow_plan_shape_t shape;
    tow_plan_actions_t *devices; /* owned; by device */
    uint32_t *stage_devices;     /* owned; the device of each stage */
} tow_plan_schedule_t;

/* Where an action stands: device and index in its list. */
typedef struct tow_plan_place {
    uint32_t device;
    uint32_t index;
} tow_plan_place_t;

/* Empty lists, and stage s on device s % device_count. INVALID_ARGUMENT: a
 * count of zero or above its bound. After an error it is zeroed. */
tow_status_t tow_plan_schedule_init(tow_plan_schedule_t *schedule,
                                    const tow_plan_shape_t *shape) TOW_MUST_USE;
/* Accepts a zeroed one. */
void tow_plan_schedule_deinit(tow_plan_schedule_t *schedule);

/* Appends to the list of `device`. INVALID_ARGUMENT past the bound. */
tow_status_t tow_plan_schedule_add(tow_plan_schedule_t *schedule,
                                   uint32_t device, tow_plan_action_t action)
    TOW_MUST_USE;

size_t tow_plan_schedule_action_count(const tow_plan_schedule_t *schedule);
/* Whether any device has an action of this kind. */
bool tow_plan_schedule_has(const tow_plan_schedule_t *schedule,
                           tow_plan_action_kind_t kind);

static inline tow_plan_action_t tow_plan_schedule_at(
    const tow_plan_schedule_t *schedule, tow_plan_place_t place)
{
    return schedule->devices[place.device].items[place.index];
}

/* What a pass adds to a schedule whose stages form a chain. */
typedef struct tow_plan_extras {
    bool recompute;  /* before each backward, or input gradient */
    bool sends;      /* after each action with a consumer elsewhere */
    bool all_reduce; /* of each stage, after its last gradient */
    bool update;     /* of each stage, at the end of its device's list */
} tow_plan_extras_t;

/* INVALID_ARGUMENT: the schedule has actions of such a kind already. */
tow_status_t tow_plan_schedule_extend(tow_plan_schedule_t *schedule,
                                      const tow_plan_extras_t *extras)
    TOW_MUST_USE;

/* -- Text ------------------------------------------------------------------ */

#define TOW_PLAN_ACTION_TEXT_MAX 32

/* "F", "SEND_F", "AR". Static. */
const char *tow_plan_action_kind_name(tow_plan_action_kind_t kind);
/* "2F0", or "2U" without a microbatch. Returns `text`. */
const char *tow_plan_action_format(tow_plan_action_t action,
                                   char text[TOW_PLAN_ACTION_TEXT_MAX]);

static inline bool tow_plan_action_has_microbatch(tow_plan_action_kind_t kind)
{
    return kind < TOW_PLAN_MICROBATCH_KIND_COUNT;
}

/* A send or an all-reduce: the device goes on while it is under way. */
static inline bool tow_plan_action_is_asynchronous(tow_plan_action_kind_t kind)
{
    return kind == TOW_PLAN_SEND_FORWARD || kind == TOW_PLAN_SEND_BACKWARD ||
           kind == TOW_PLAN_ALL_REDUCE;
}

#endif /* TOW_PLAN_SCHEDULE_SCHEDULE_H_ */
