/* Invariants of the simulated driver's records. All are O(1), and are asserted
 * after every change. */
#include "base/assert.h"
#include "device/sim/driver_impl.h"

void tow_sim_buffer_check(const buffer_t *buffer)
{
    TOW_ASSERT(buffer->reference_count > 0);
    TOW_ASSERT((buffer->state == TOW_BUFFER_FAILED) ==
               (buffer->error != TOW_OK));
    /* Each reader has a reference, and each share is a reader. */
    TOW_ASSERT(buffer->reader_count <= buffer->reference_count);
    TOW_ASSERT(buffer->share_count <= buffer->reader_count);
    TOW_ASSERT(buffer->share_count == 0 || buffer->shared != NULL);
    TOW_ASSERT(buffer->memory_bytes == 0 ||
               buffer->memory_bytes == buffer->base.bytes);
}

void tow_sim_lane_check(const lane_t *lane)
{
    TOW_ASSERT(!lane->is_busy || !tow_list_is_empty(&lane->transfers));
    TOW_ASSERT(lane->count > 0 || tow_list_is_empty(&lane->transfers));
    TOW_ASSERT(lane->count <= TOW_SIM_QUEUED_TRANSFERS_MAX);
}

void tow_sim_device_check(const device_t *device)
{
    const tow_memory_stats_t *memory = &device->memory;
    TOW_ASSERT((device->queued_count == 0) ==
               tow_list_is_empty(&device->queue));
    TOW_ASSERT(device->queued_count <= TOW_SIM_QUEUED_RUNS_MAX);
    TOW_ASSERT(device->stage == DEVICE_IDLE || device->queued_count > 0);
    TOW_ASSERT((device->stage == DEVICE_IN_COLLECTIVE) ==
               (device->member.rendezvous != NULL));
    TOW_ASSERT(device->stage == DEVICE_WAITING ||
               tow_list_is_empty(&device->waiter.link));
    TOW_ASSERT(memory->bytes_in_use <= memory->bytes_limit);
    TOW_ASSERT(memory->bytes_in_use <= memory->bytes_peak);
    TOW_ASSERT(device->temporary_bytes <= memory->bytes_in_use);
}

void tow_sim_rendezvous_check(const rendezvous_t *rendezvous)
{
    TOW_ASSERT(rendezvous->present_count <= rendezvous->group.size);
    TOW_ASSERT(!rendezvous->is_running ||
               rendezvous->present_count == rendezvous->group.size);
    TOW_ASSERT(!rendezvous->is_open || !rendezvous->is_running);
    TOW_ASSERT(!rendezvous->has_departed || rendezvous->is_running);
}
