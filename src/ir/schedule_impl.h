/* The schedule of a program, from which lowering and costs are computed: the
 * steps in order, a slot for every value, and the last use of each. */
#ifndef TOW_IR_SCHEDULE_IMPL_H_
#define TOW_IR_SCHEDULE_IMPL_H_

#include "ir/graph_impl.h"

#define TOW_STEP_NONE UINT32_MAX

typedef struct tow_slot {
    uint32_t
        last_step; /* last use; its producer if unused; TOW_STEP_NONE for an
                         * unused argument */
    bool is_result;
    bool is_caller_owned; /* an argument that the run must not consume */
    bool is_repeated;     /* it is two inputs of its last step */
    bool is_listed;       /* for lowering: already in `freed` */
} tow_slot_t;

typedef struct tow_schedule {
    const tow_graph_t *program; /* lent */
    size_t step_count;
    uint32_t *nodes;                    /* by step */
    uint32_t *first_slots;              /* by node */
    const tow_signature_t **signatures; /* by step; lent by the scope; NULL
                                           without a function */
    tow_slot_t *slots;
    uint32_t slot_count;
    bool *donates; /* by input, of the last tow_schedule_donates */
    bool has_late; /* a transfer is late: late.c */
    bool *is_late; /* by node; NULL: none is */
    /* By step, of late transfers: 1 + the computation after which a worker
     * takes memory for it; 1 + the computation that starts on the source slice
     * only after it has been sent. 0: none. NULL: no transfer is late. */
    uint32_t *memory_after;
    uint32_t *sent_before;
} tow_schedule_t;

/* The program has been verified under `scope`. */
tow_status_t tow_schedule_init(tow_schedule_t *schedule,
                               const tow_graph_t *program,
                               const tow_graph_scope_t *scope) TOW_MUST_USE;
/* Accepts zeroed and partially initialised ones. */
void tow_schedule_deinit(tow_schedule_t *schedule);

static inline const tow_node_t *tow_schedule_node(
    const tow_schedule_t *schedule, size_t step)
{
    return &schedule->program->nodes.items[schedule->nodes[step]];
}

/* -- Late transfers (late.c) ----------------------------------------------- */

/* Moves them directly before their first user. Slots are numbered, by the order
 * so far. */
tow_status_t tow_schedule_place_late(tow_schedule_t *schedule,
                                     const tow_graph_scope_t *scope)
    TOW_MUST_USE;
/* Fills `memory_after` and `sent_before`. */
tow_status_t tow_schedule_find_waits(tow_schedule_t *schedule,
                                     const tow_graph_scope_t *scope)
    TOW_MUST_USE;

/* Number of slots that a step fills, from its first. */
static inline uint32_t tow_schedule_outputs(const tow_schedule_t *schedule,
                                            size_t step)
{
    const tow_signature_t *signature = schedule->signatures[step];
    const tow_node_t *node = tow_schedule_node(schedule, step);
    if (signature != NULL) return (uint32_t)signature->result_count;
    return node->kind == TOW_NODE_COLLECTIVE ? (uint32_t)node->input_count : 1;
}

static inline uint32_t tow_schedule_slot(const tow_schedule_t *schedule,
                                         tow_value_t value)
{
    return schedule->first_slots[value.node] + value.output;
}

/* True if `step` may donate `slot`, one of its inputs. */
static inline bool tow_schedule_may_donate(const tow_schedule_t *schedule,
                                           size_t step, uint32_t slot)
{
    const tow_slot_t *it = &schedule->slots[slot];
    return it->last_step == step && !it->is_result && !it->is_caller_owned &&
           !it->is_repeated;
}

/* The inputs that the function of `step` would donate; lent until the next
 * call. None without a function. */
const bool *tow_schedule_donates(tow_schedule_t *schedule, size_t step);

#endif /* TOW_IR_SCHEDULE_IMPL_H_ */
