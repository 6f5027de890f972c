#include "plan/schedule/check.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "plan/schedule/work_impl.h"

typedef struct check {
    tow_plan_work_t work;
    tow_plan_fault_t *out_fault; /* lent; NULL: not wanted */
    tow_plan_place_t *order;     /* owned */
    uint32_t *stuck;             /* owned; by device */
} check_t;

/* -- Missing work ---------------------------------------------------------- */

static tow_status_t report_missing(const check_t *check, uint32_t stage,
                                   const char *what)
{
    const tow_plan_place_t place = {check->work.schedule->stage_devices[stage],
                                    TOW_PLAN_NONE};
    return TOW_PLAN_FAULT(check->out_fault, TOW_PLAN_FAULT_MISSING, place,
                          "%s is missing", what);
}

static tow_status_t require(const check_t *check, tow_plan_action_t action)
{
    char text[TOW_PLAN_ACTION_TEXT_MAX];
    if (tow_plan_work_index(&check->work, action) != TOW_PLAN_NONE)
        return TOW_OK;
    return report_missing(check, action.stage,
                          tow_plan_action_format(action, text));
}

static tow_status_t report_both(const check_t *check, uint32_t stage,
                                uint32_t microbatch,
                                tow_plan_action_kind_t half)
{
    const tow_plan_action_t action = {half, stage, microbatch};
    const tow_plan_place_t place = {check->work.schedule->stage_devices[stage],
                                    tow_plan_work_index(&check->work, action)};
    char text[TOW_PLAN_ACTION_TEXT_MAX];
    return TOW_PLAN_FAULT(check->out_fault, TOW_PLAN_FAULT_DOUBLED, place,
                          "%s is done already, by %" PRIu32 "B%" PRIu32,
                          tow_plan_action_format(action, text), stage,
                          microbatch);
}

static tow_status_t check_backward(const check_t *check, uint32_t stage,
                                   uint32_t microbatch)
{
    const tow_plan_work_t *work = &check->work;
    const bool has_whole =
        tow_plan_work_has(work, TOW_PLAN_BACKWARD, stage, microbatch);
    const bool has_input =
        tow_plan_work_has(work, TOW_PLAN_INPUT_GRAD, stage, microbatch);
    const bool has_weight =
        tow_plan_work_has(work, TOW_PLAN_WEIGHT_GRAD, stage, microbatch);
    if (has_whole && has_input)
        return report_both(check, stage, microbatch, TOW_PLAN_INPUT_GRAD);
    if (has_whole && has_weight)
        return report_both(check, stage, microbatch, TOW_PLAN_WEIGHT_GRAD);
    if (has_whole) return TOW_OK;
    char what[96];
    if (!has_input && !has_weight) {
        snprintf(what, sizeof(what),
                 "%" PRIu32 "B%" PRIu32 " (or %" PRIu32 "I%" PRIu32
                 " and %" PRIu32 "W%" PRIu32 ")",
                 stage, microbatch, stage, microbatch, stage, microbatch);
        return report_missing(check, stage, what);
    }
    TOW_RETURN_IF_ERROR(require(
        check, (tow_plan_action_t){TOW_PLAN_INPUT_GRAD, stage, microbatch}));
    return require(
        check, (tow_plan_action_t){TOW_PLAN_WEIGHT_GRAD, stage, microbatch});
}

static bool crosses(const check_t *check, uint32_t stage, bool is_cotangent)
{
    const tow_plan_work_t *work = &check->work;
    const tow_plan_edge_lists_t *lists =
        is_cotangent ? &work->entering : &work->leaving;
    for (uint32_t i = lists->firsts[stage]; i < lists->firsts[stage + 1]; i++) {
        const tow_plan_edge_t *edge = &work->edges[lists->items[i]];
        if (is_cotangent && edge->is_forward_only) continue;
        if (tow_plan_work_crosses(work, edge)) return true;
    }
    return false;
}

static tow_status_t check_send(const check_t *check, tow_plan_action_t send)
{
    const bool is_cotangent = send.kind == TOW_PLAN_SEND_BACKWARD;
    const uint32_t index = tow_plan_work_index(&check->work, send);
    char text[TOW_PLAN_ACTION_TEXT_MAX];
    if (crosses(check, send.stage, is_cotangent)) return require(check, send);
    if (index == TOW_PLAN_NONE) return TOW_OK;
    const tow_plan_place_t place = {
        check->work.schedule->stage_devices[send.stage], index};
    return TOW_PLAN_FAULT(check->out_fault, TOW_PLAN_FAULT_IMPOSSIBLE, place,
                          "%s has no stage of another device to send to",
                          tow_plan_action_format(send, text));
}

static tow_status_t check_sends(const check_t *check, uint32_t stage,
                                uint32_t microbatch)
{
    if (!check->work.has_sends) return TOW_OK;
    TOW_RETURN_IF_ERROR(check_send(
        check, (tow_plan_action_t){TOW_PLAN_SEND_FORWARD, stage, microbatch}));
    return check_send(
        check, (tow_plan_action_t){TOW_PLAN_SEND_BACKWARD, stage, microbatch});
}

/* -- Order within a stage -------------------------------------------------- */

/* `later` needs `earlier`, on the same device; one that is absent is right. */
static tow_status_t check_order(const check_t *check, tow_plan_action_t later,
                                tow_plan_action_t earlier)
{
    const uint32_t index = tow_plan_work_index(&check->work, later);
    const uint32_t needed = tow_plan_work_index(&check->work, earlier);
    if (index == TOW_PLAN_NONE || needed == TOW_PLAN_NONE || needed < index)
        return TOW_OK;
    const tow_plan_place_t place = {
        check->work.schedule->stage_devices[later.stage], index};
    char text[TOW_PLAN_ACTION_TEXT_MAX];
    char needed_text[TOW_PLAN_ACTION_TEXT_MAX];
    return TOW_PLAN_FAULT(check->out_fault, TOW_PLAN_FAULT_ORDER, place,
                          "%s comes before %s, which it needs and which is "
                          "action %" PRIu32,
                          tow_plan_action_format(later, text),
                          tow_plan_action_format(earlier, needed_text), needed);
}

static tow_status_t check_cell_order(const check_t *check, uint32_t s,
                                     uint32_t m)
{
    const tow_plan_action_t forward = {TOW_PLAN_FORWARD, s, m};
    const tow_plan_action_t recompute = {TOW_PLAN_RECOMPUTE, s, m};
    const tow_plan_action_t backward =
        tow_plan_work_backward(&check->work, s, m);
    const tow_plan_action_t gradient =
        tow_plan_work_gradient(&check->work, s, m);
    const struct {
        tow_plan_action_t later;
        tow_plan_action_t earlier;
    } pairs[] = {
        {recompute, forward},
        {backward, forward},
        {backward, recompute},
        {{TOW_PLAN_WEIGHT_GRAD, s, m}, {TOW_PLAN_INPUT_GRAD, s, m}},
        {{TOW_PLAN_SEND_FORWARD, s, m}, forward},
        {{TOW_PLAN_SEND_BACKWARD, s, m}, backward},
        {{TOW_PLAN_ALL_REDUCE, s, TOW_PLAN_NONE}, gradient},
        {{TOW_PLAN_UPDATE, s, TOW_PLAN_NONE}, gradient},
    };
    for (size_t i = 0; i < TOW_COUNT_OF(pairs); i++)
        TOW_RETURN_IF_ERROR(
            check_order(check, pairs[i].later, pairs[i].earlier));
    return TOW_OK;
}

static tow_status_t check_cell(const check_t *check, uint32_t stage,
                               uint32_t microbatch)
{
    TOW_RETURN_IF_ERROR(require(
        check, (tow_plan_action_t){TOW_PLAN_FORWARD, stage, microbatch}));
    TOW_RETURN_IF_ERROR(check_backward(check, stage, microbatch));
    TOW_RETURN_IF_ERROR(check_sends(check, stage, microbatch));
    return check_cell_order(check, stage, microbatch);
}

static tow_status_t check_stage(const check_t *check, uint32_t stage)
{
    const tow_plan_action_t all_reduce = {TOW_PLAN_ALL_REDUCE, stage,
                                          TOW_PLAN_NONE};
    const tow_plan_action_t update = {TOW_PLAN_UPDATE, stage, TOW_PLAN_NONE};
    for (uint32_t m = 0; m < check->work.schedule->shape.microbatch_count; m++)
        TOW_RETURN_IF_ERROR(check_cell(check, stage, m));
    if (check->work.has_all_reduces)
        TOW_RETURN_IF_ERROR(require(check, all_reduce));
    if (check->work.has_updates) TOW_RETURN_IF_ERROR(require(check, update));
    return check_order(check, update, all_reduce);
}

/* -- Deadlock -------------------------------------------------------------- */

/* The action at which the device is stuck, and the action it waits for. */
static tow_plan_action_t wait_of(const check_t *check, const uint32_t *done,
                                 uint32_t device, tow_plan_action_t *out_needed)
{
    const tow_plan_action_t action = tow_plan_schedule_at(
        check->work.schedule, (tow_plan_place_t){device, check->stuck[device]});
    const bool waits =
        tow_plan_work_waits_for(&check->work, action, done, out_needed);
    TOW_ASSERT(waits);
    return action;
}

static uint32_t next_device(const check_t *check, const uint32_t *done,
                            uint32_t device)
{
    tow_plan_action_t needed;
    wait_of(check, done, device, &needed);
    return check->work.schedule->stage_devices[needed.stage];
}

/* A device of the cycle: every stuck device waits for a stuck device, so that
 * device_count steps from any of them end in a cycle. */
static uint32_t find_cycle(const check_t *check, const uint32_t *done)
{
    const uint32_t count = check->work.schedule->shape.device_count;
    uint32_t device = 0;
    while (check->stuck[device] == TOW_PLAN_NONE)
        device++;
    for (uint32_t i = 0; i < count; i++)
        device = next_device(check, done, device);
    return device;
}

#define CYCLE_SHOWN_MAX 8

/* Long cycles are cut: their beginning is what one reads. */
static void describe_cycle(const check_t *check, const uint32_t *done,
                           uint32_t first, char *text, size_t capacity)
{
    char own[TOW_PLAN_ACTION_TEXT_MAX];
    char other[TOW_PLAN_ACTION_TEXT_MAX];
    uint32_t device = first;
    size_t size = 0;
    uint32_t count = 0;
    do {
        tow_plan_action_t needed;
        const tow_plan_action_t action = wait_of(check, done, device, &needed);
        const uint32_t next = check->work.schedule->stage_devices[needed.stage];
        if (count++ < CYCLE_SHOWN_MAX && size < capacity)
            size += (size_t)snprintf(
                text + size, capacity - size,
                "%sdevice %" PRIu32 " is at action %" PRIu32
                ", %s, and waits for %s of device %" PRIu32,
                count > 1 ? "; " : "", device, check->stuck[device],
                tow_plan_action_format(action, own),
                tow_plan_action_format(needed, other), next);
        device = next;
    } while (device != first);
    if (count > CYCLE_SHOWN_MAX && size < capacity)
        snprintf(text + size, capacity - size, "; and %" PRIu32 " more",
                 count - CYCLE_SHOWN_MAX);
}

static tow_status_t report_deadlock(const check_t *check)
{
    const tow_plan_schedule_t *schedule = check->work.schedule;
    uint32_t done[TOW_PLAN_DEVICE_COUNT_MAX];
    char text[1024];
    for (uint32_t d = 0; d < schedule->shape.device_count; d++)
        done[d] = check->stuck[d] == TOW_PLAN_NONE
                      ? (uint32_t)schedule->devices[d].count
                      : check->stuck[d];
    const uint32_t first = find_cycle(check, done);
    describe_cycle(check, done, first, text, sizeof(text));
    tow_plan_fault_set(check->out_fault, TOW_PLAN_FAULT_DEADLOCK,
                       (tow_plan_place_t){first, check->stuck[first]});
    return TOW_ERROR(TOW_INVALID_ARGUMENT, "deadlock: %s", text);
}

static tow_status_t check_progress(check_t *check)
{
    const uint32_t devices = check->work.schedule->shape.device_count;
    check->order =
        tow_malloc((check->work.action_count + 1) * sizeof(check->order[0]));
    check->stuck = tow_malloc(devices * sizeof(check->stuck[0]));
    if (check->order == NULL || check->stuck == NULL)
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    if (tow_plan_work_order(&check->work, check->order, check->stuck))
        return TOW_OK;
    return report_deadlock(check);
}

/* -- All ------------------------------------------------------------------- */

static tow_status_t check_all(check_t *check,
                              const tow_plan_check_options_t *options)
{
    for (uint32_t s = 0; s < check->work.schedule->shape.stage_count; s++)
        TOW_RETURN_IF_ERROR(check_stage(check, s));
    TOW_RETURN_IF_ERROR(check_progress(check));
    if (options == NULL || options->bytes_max == 0) return TOW_OK;
    return tow_plan_work_check_memory(&check->work, options, check->out_fault);
}

tow_status_t tow_plan_schedule_check(const tow_plan_schedule_t *schedule,
                                     const tow_plan_check_options_t *options,
                                     tow_plan_fault_t *out_fault)
{
    check_t check = {.out_fault = out_fault};
    if (out_fault != NULL)
        *out_fault = (tow_plan_fault_t){.kind = TOW_PLAN_FAULT_NONE};
    tow_status_t status =
        tow_plan_work_init(&check.work, schedule,
                           options == NULL ? NULL : &options->costs, out_fault);
    if (status == TOW_OK) status = check_all(&check, options);
    tow_free(check.order);
    tow_free(check.stuck);
    tow_plan_work_deinit(&check.work);
    return status;
}
