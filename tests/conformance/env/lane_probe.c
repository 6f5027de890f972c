#include "lane_probe.h"

#include <stdio.h>
#include <stdlib.h>

/* -- Lanes ---------------------------------------------------------------- */

static void lane_down(void *context, tow_lane_t *lane, tow_status_t cause)
{
    lane_probe_t *probe = context;
    turn_enter(probe->env);
    assert_ptr_equal(lane, probe->lane);
    if (probe->closing) fail_msg("down ran after the lane's close");
    if (probe->down_count > 0) fail_msg("a lane went down twice");
    probe->down_count++;
    snprintf(probe->cause, sizeof(probe->cause), "%s",
             tow_status_message(cause));
    turn_leave(probe->env);
}

static void lane_writable(void *context, tow_lane_t *lane)
{
    lane_probe_t *probe = context;
    turn_enter(probe->env);
    if (probe->closing) fail_msg("writable ran after the lane's close");
    probe->writable_count++;
    if (probe->writable != NULL) probe->writable(probe);
    turn_leave(probe->env);
}

tow_status_t lane_probe_try_open(lane_probe_t *probe, tow_env_t *from,
                                 const void *address, size_t address_size)
{
    probe->env = from;
    tow_lane_options_t options = {.address = address,
                                  .address_size = address_size,
                                  .peer_name = "the-peer",
                                  .down = lane_down,
                                  .writable = lane_writable,
                                  .context = probe};
    call_enter();
    tow_status_t status = tow_env_lane_open(from, &options, &probe->lane);
    call_leave();
    assert_true((status == TOW_OK) == (probe->lane != NULL));
    return status;
}

void lane_probe_open_at(lane_probe_t *probe, tow_env_t *from,
                        const void *address, size_t address_size)
{
    tow_status_t status =
        lane_probe_try_open(probe, from, address, address_size);
    if (status != TOW_OK)
        fail_msg("opening a lane: %s", tow_status_message(status));
}

void lane_probe_open(lane_probe_t *probe, tow_env_t *from, tow_env_t *to)
{
    const void *address;
    size_t address_size;
    tow_env_lane_address(to, &address, &address_size);
    /* As if received over a link: a copy that is freed after the call. */
    void *copy = malloc(address_size);
    memcpy(copy, address, address_size);
    lane_probe_open_at(probe, from, copy, address_size);
    memset(copy, 0xdd, address_size);
    free(copy);
}

static void lane_closed(void *context)
{
    lane_probe_t *probe = context;
    turn_enter(probe->env);
    probe->closed.count++;
    if (probe->closed.count > 1) fail_msg("a lane was closed twice");
    if (probe->pending_count > 0)
        fail_msg("a lane is closed and %d of its writes are not done",
                 probe->pending_count);
    turn_leave(probe->env);
}

void lane_probe_close(lane_probe_t *probe, tow_lane_close_mode_t mode)
{
    assert_false(probe->closing);
    probe->closing = true;
    call_enter();
    tow_lane_close(probe->lane, mode,
                   (tow_closed_t){.run = lane_closed, .context = probe});
    call_leave();
}

/* -- Regions -------------------------------------------------------------- */

#define GUARD_SIZE 64
#define GUARD_BYTE 0x5a

static void region_arrived(void *context, tow_region_t *region,
                           const tow_arrival_t *arrival)
{
    region_probe_t *probe = context;
    turn_enter(probe->env);
    assert_ptr_equal(region, probe->region);
    if (probe->closed.count > 0) fail_msg("arrived ran on a closed region");
    if (probe->arrived_count < ARRIVAL_COUNT_MAX)
        probe->arrivals[probe->arrived_count] = *arrival;
    probe->arrived_count++;
    assert_true(arrival->offset <= probe->size);
    assert_true(arrival->size <= probe->size - arrival->offset);
    if (probe->arrived != NULL) probe->arrived(probe, arrival);
    turn_leave(probe->env);
}

void region_probe_open(region_probe_t *probe, tow_env_t *env, size_t size)
{
    probe->env = env;
    probe->size = size;
    uint8_t *block = calloc(1, size + 2 * (size_t)GUARD_SIZE);
    assert_non_null(block);
    memset(block, GUARD_BYTE, GUARD_SIZE);
    memset(block + GUARD_SIZE + size, GUARD_BYTE, GUARD_SIZE);
    probe->bytes = block + GUARD_SIZE;
    tow_region_options_t options = {.bytes = probe->bytes,
                                    .size = size,
                                    .arrived = region_arrived,
                                    .context = probe};
    tow_status_t status = tow_env_region_open(env, &options, &probe->region);
    if (status != TOW_OK)
        fail_msg("opening a region: %s", tow_status_message(status));
}

void region_probe_close(region_probe_t *probe)
{
    assert_false(probe->closing);
    probe->closing = true;
    call_enter();
    tow_region_close(probe->region, closed_probe(&probe->closed, probe->env));
    call_leave();
}

void region_probe_free(region_probe_t *probe)
{
    if (probe->bytes == NULL) return;
    uint8_t *block = probe->bytes - GUARD_SIZE;
    for (size_t i = 0; i < GUARD_SIZE; i++) {
        if (block[i] != GUARD_BYTE ||
            block[GUARD_SIZE + probe->size + i] != GUARD_BYTE)
            fail_msg("a write went beyond its region");
    }
    free(block);
    probe->bytes = NULL;
}

/* -- Writes --------------------------------------------------------------- */

static void write_done(tow_write_t *write, tow_status_t take_status)
{
    write_probe_t *probe = TOW_CONTAINER_OF(write, write_probe_t, write);
    tow_env_t *env = probe->lane->env;
    turn_enter(env);
    probe->done_count++;
    if (probe->done_count > 1) fail_msg("a write was done twice");
    probe->lane->pending_count--;
    probe->code = tow_status_code(take_status);
    snprintf(probe->cause, sizeof(probe->cause), "%s",
             tow_status_message(take_status));
    tow_status_release(take_status);
    if (probe->done != NULL) probe->done(probe);
    turn_leave(env);
}

tow_send_result_t write_probe_submit(write_probe_t *probe, lane_probe_t *lane)
{
    probe->lane = lane;
    call_enter();
    tow_send_result_t result = tow_lane_write(lane->lane, &probe->write);
    call_leave();
    if (result == TOW_SEND_OK) lane->pending_count++;
    return result;
}

tow_send_result_t write_probe_start(write_probe_t *probe, lane_probe_t *lane,
                                    const write_plan_t *plan)
{
    probe->bytes = malloc(plan->size);
    assert_non_null(probe->bytes);
    pattern_fill(probe->bytes, plan->size, plan->tag);
    probe->write = (tow_write_t){.bytes = probe->bytes,
                                 .size = plan->size,
                                 .key = plan->key,
                                 .offset = plan->offset,
                                 .tag = plan->tag,
                                 .check = plan->check,
                                 .done = write_done};
    return write_probe_submit(probe, lane);
}

void write_probe_free(write_probe_t *probe)
{
    free(probe->bytes);
    probe->bytes = NULL;
}
