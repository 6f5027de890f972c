/* Device time of runs.
 *
 * The controller bounds the device time that is under way on each device. So it
 * must know how long a run keeps a device: times of computations on the same
 * devices add up, those of stages on different devices do not. Computations that
 * have devices in common, directly or through others, are counted together. This
 * is exact if the devices of any two are the same or disjoint, and otherwise
 * more than any one device was kept. */
#include <string.h>

#include "dataflow/dataflow_impl.h"

/* `sets` maps each device to the lowest number of a device in its set. */
static void join(uint32_t *sets, size_t device_count, uint32_t a, uint32_t b)
{
    const uint32_t lower = a < b ? a : b;
    const uint32_t higher = a < b ? b : a;
    for (size_t i = 0; i < device_count; i++)
        if (sets[i] == higher) sets[i] = lower;
}

static void join_devices(uint32_t *sets, size_t device_count,
                         const tow_executable_t *executable)
{
    const size_t *devices = executable->local_devices;
    for (size_t i = 1; i < executable->local_device_count; i++)
        if (sets[devices[i]] != sets[devices[0]])
            join(sets, device_count, sets[devices[i]], sets[devices[0]]);
}

/* Also says whether there are several sets. */
static void assign_sets(program_t *program, const uint32_t *sets)
{
    uint32_t first = UINT32_MAX;
    program->is_spread = false;
    for (size_t i = 0; i < program->lowered->step_count; i++) {
        step_t *step = &program->steps[i];
        if (step->executable == NULL) continue;
        step->device_set = sets[step->executable->local_devices[0]];
        if (first == UINT32_MAX) first = step->device_set;
        program->is_spread |= step->device_set != first;
    }
}

bool dataflow_time_bind(const tow_dataflow_t *dataflow, program_t *program)
{
    const size_t device_count = dataflow->options.driver->device_count;
    uint32_t *sets =
        tow_arena_calloc(&program->arena, device_count + 1, sizeof(*sets));
    if (sets == NULL) return false;
    for (size_t i = 0; i < device_count; i++)
        sets[i] = (uint32_t)i;
    for (size_t i = 0; i < program->lowered->step_count; i++)
        if (program->steps[i].executable != NULL)
            join_devices(sets, device_count, program->steps[i].executable);
    assign_sets(program, sets);
    return true;
}

static size_t kept_bytes(const tow_dataflow_t *dataflow)
{
    return dataflow->options.driver->device_count * sizeof(uint64_t);
}

void dataflow_time_init(tow_dataflow_t *dataflow)
{
    tow_pool_init(&dataflow->kept_pool, kept_bytes(dataflow),
                  dataflow->options.run_count_max);
}

void dataflow_time_begin(tow_dataflow_t *dataflow, const program_t *program,
                         run_t *run)
{
    if (TOW_LIKELY(!program->is_spread)) return;
    run->kept_ns = tow_pool_take(&dataflow->kept_pool);
    if (run->kept_ns != NULL) memset(run->kept_ns, 0, kept_bytes(dataflow));
}

void dataflow_time_add(step_run_t *step)
{
    const tow_device_time_t *time = &step->run.time;
    tow_dataflow_stats_t *stats = &step->dataflow->stats;
    run_t *run = step->owner;
    uint64_t *kept_ns = run->kept_ns != NULL ? &run->kept_ns[step->device_set]
                                             : &run->time.longest_ns;
    *kept_ns += time->longest_ns;
    run->time.busy_ns += time->busy_ns;
    run->time.wait_ns += time->wait_ns;
    stats->device_ns += time->busy_ns;
    stats->wait_ns += time->wait_ns;
}

tow_device_time_t dataflow_time_take(const tow_dataflow_t *dataflow, run_t *run)
{
    tow_device_time_t time = run->time;
    run->time = (tow_device_time_t){0};
    if (TOW_LIKELY(run->kept_ns == NULL)) return time;
    for (size_t i = 0; i < dataflow->options.driver->device_count; i++)
        if (run->kept_ns[i] > time.longest_ns)
            time.longest_ns = run->kept_ns[i];
    memset(run->kept_ns, 0, kept_bytes(dataflow));
    return time;
}

void dataflow_time_end(tow_dataflow_t *dataflow, run_t *run)
{
    if (TOW_LIKELY(run->kept_ns == NULL)) return;
    tow_pool_give(&dataflow->kept_pool, run->kept_ns);
    run->kept_ns = NULL;
}
