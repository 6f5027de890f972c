/* Device time: how long each shard of a run kept its device.
 *
 * Our own plugin measures it, with waits in collectives apart. Any other plugin
 * only reports when a shard has completed. Its device runs one shard after the
 * other, so the shard began when the one before had completed, when its last
 * input became ready or when it was enqueued, whichever was last. Waits in
 * collectives are then part of the busy time. */
#include "device/pjrt/pjrt_impl.h"

static tow_device_time_t *time_of(const pjrt_shard_t *shard)
{
    return &shard->run->run->time;
}

void tow_pjrt_time_read(const pjrt_shard_t *shard)
{
    const pjrt_completion_t *completion = &shard->completion;
    if (!completion->driver->has_device_times || completion->event == NULL)
        return;
    uint64_t busy_ns = 0, wait_ns = 0;
    completion->driver->plugin.xla->device_time(completion->event, &busy_ns,
                                                &wait_ns);
    tow_device_time_add(time_of(shard), busy_ns, wait_ns);
}

static int64_t later(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* A plugin's clock is not ours, but its events arrive here: none of these times
 * is later than the completion, except if events arrive out of order. */
void tow_pjrt_time_infer(const pjrt_shard_t *shard, pjrt_buffer_t **inputs,
                         size_t input_count)
{
    const pjrt_run_t *run = shard->run;
    const pjrt_driver_t *driver = shard->completion.driver;
    if (driver->has_device_times || !run->has_reached_plugin) return;
    int64_t *completed_ns =
        &driver->completed_ns[run->executable->executable
                                  .local_devices[shard->local]];
    const int64_t end_ns = shard->ready_ns;
    int64_t start_ns = later(run->enqueued_ns, *completed_ns);
    for (size_t i = 0; i < input_count; i++)
        start_ns = later(start_ns, inputs[i]->ready_ns);
    *completed_ns = later(*completed_ns, end_ns);
    tow_device_time_add(time_of(shard),
                        end_ns > start_ns ? (uint64_t)(end_ns - start_ns) : 0,
                        0);
}
