/* Executables: a cost program for a model and a device assignment. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "device/sim/driver_impl.h"
#include "device/sim/value.h"

static tow_status_t out_of_memory(void)
{
    return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
}

/* -- Stages ---------------------------------------------------------------- */

static tow_status_t TOW_COLD no_rate(const driver_t *driver, tow_type_t type)
{
    char known[160] = "";
    for (int i = 0; i < TOW_SIM_MODEL_TYPE_COUNT; i++) {
        if (driver->model.flops_per_second[i] == 0) continue;
        size_t length = strlen(known);
        snprintf(known + length, sizeof(known) - length, " %s",
                 tow_type_name((tow_type_t)i));
    }
    return TOW_ERROR(TOW_INVALID_ARGUMENT,
                     "model %s has no rate for %s; it knows:"
                     "%s",
                     driver->model.name, tow_type_name(type), known);
}

/* The longer of arithmetic and memory time. */
static tow_status_t compute_ns(const driver_t *driver,
                               const tow_sim_cost_step_t *step,
                               uint64_t *out_ns)
{
    const tow_sim_model_t *model = &driver->model;
    uint64_t ns =
        tow_sim_ns_at_rate(step->bytes, model->memory_bytes_per_second);
    *out_ns = ns;
    if (step->flops == 0) return TOW_OK;
    if (step->type >= TOW_SIM_MODEL_TYPE_COUNT ||
        model->flops_per_second[step->type] == 0)
        return no_rate(driver, step->type);
    uint64_t flops_ns =
        tow_sim_ns_at_rate(step->flops, model->flops_per_second[step->type]);
    if (flops_ns > ns) *out_ns = flops_ns;
    return TOW_OK;
}

static tow_status_t plan_collective(const driver_t *driver, uint32_t count,
                                    const tow_sim_cost_step_t *step,
                                    stage_t *stage)
{
    uint32_t size = step->group_size > 0 ? step->group_size : count;
    uint32_t stride = step->group_size > 0 ? step->stride : 1;
    if (count % ((uint64_t)size * stride) != 0)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "%s among groups of %u, stride %u: %u devices do not "
                         "divide into them",
                         tow_sim_collective_name(step->collective), size,
                         stride, count);
    stage->has_collective = true;
    stage->kind = step->collective;
    stage->group_size = size;
    stage->stride = stride;
    stage->bytes = step->bytes;
    stage->duration_ns = tow_sim_scale_ns(
        driver, tow_sim_model_collective_ns(&driver->model, step->collective,
                                            step->bytes, size));
    return TOW_OK;
}

static bool find_local(const driver_t *driver, int64_t id, size_t *out_index)
{
    /* Wraps around for smaller ids. */
    uint64_t index = (uint64_t)id - (uint64_t)driver->base.devices[0].id;
    *out_index = (size_t)index;
    return index < driver->base.device_count;
}

/* Steps between collectives become one pause, so that a device needs one timer
 * for them. */
static tow_status_t plan_stages(const driver_t *driver,
                                executable_t *executable)
{
    const tow_sim_cost_t *cost = &executable->cost;
    stage_t *stage = executable->stages;
    uint64_t pause_ns = driver->model.launch_ns;
    for (size_t i = 0; i < cost->step_count; i++) {
        const tow_sim_cost_step_t *step = &cost->steps[i];
        uint64_t ns = step->ns;
        if (step->kind == TOW_SIM_STEP_COLLECTIVE) {
            TOW_RETURN_IF_ERROR(plan_collective(
                driver, executable->assignment->count, step, stage));
            stage++->pause_ns = tow_sim_scale_ns(driver, pause_ns);
            pause_ns = 0;
            continue;
        }
        if (step->kind == TOW_SIM_STEP_COMPUTE)
            TOW_RETURN_IF_ERROR(compute_ns(driver, step, &ns));
        pause_ns = tow_sim_ns_add(pause_ns, ns);
    }
    stage++->pause_ns = tow_sim_scale_ns(driver, pause_ns);
    executable->stage_count = (size_t)(stage - executable->stages);
    return TOW_OK;
}

/* -- Devices --------------------------------------------------------------- */

/* Without an assignment: the driver's first devices. */
static tow_status_t default_ids(const driver_t *driver,
                                compile_options_t *options)
{
    uint64_t count =
        (uint64_t)options->replica_count * options->partition_count;
    if (count > driver->base.device_count)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "compile options: %" PRIu64 " devices are wanted and "
                         "none assigned; this host has %zu",
                         count, driver->base.device_count);
    options->ids = tow_calloc(count, sizeof(*options->ids));
    if (options->ids == NULL) return out_of_memory();
    for (size_t i = 0; i < count; i++)
        options->ids[i] = driver->base.devices[i].id;
    return TOW_OK;
}

static tow_status_t find_locals(const driver_t *driver,
                                executable_t *executable)
{
    const assignment_t *assignment = executable->assignment;
    size_t most = driver->base.device_count < assignment->count
                      ? driver->base.device_count
                      : assignment->count;
    executable->local_devices = tow_calloc(most, sizeof(size_t));
    executable->local_positions = tow_calloc(most, sizeof(uint32_t));
    if (executable->local_devices == NULL ||
        executable->local_positions == NULL)
        return out_of_memory();
    size_t count = 0;
    for (uint32_t i = 0; i < assignment->count; i++) {
        size_t index;
        if (!find_local(driver, assignment->ids[i], &index)) continue;
        executable->local_devices[count] = index;
        executable->local_positions[count++] = i;
    }
    executable->base.local_devices = executable->local_devices;
    executable->base.local_device_count = count;
    return TOW_OK;
}

static tow_status_t assign(driver_t *driver, executable_t *executable,
                           tow_bytes_t options_bytes)
{
    compile_options_t options;
    TOW_RETURN_IF_ERROR(tow_sim_compile_options_read(options_bytes, &options));
    tow_status_t status = TOW_OK;
    if (options.ids == NULL) status = default_ids(driver, &options);
    if (status == TOW_OK) {
        executable->assignment = tow_sim_assignment_intern(
            driver->fabric, options.ids,
            options.replica_count * options.partition_count);
        if (executable->assignment == NULL) status = out_of_memory();
    }
    tow_free(options.ids);
    TOW_RETURN_IF_ERROR(status);
    executable->base.signature.replica_count = options.replica_count;
    executable->base.signature.partition_count = options.partition_count;
    return find_locals(driver, executable);
}

/* -- Creating -------------------------------------------------------------- */

static void fill_signature(executable_t *executable)
{
    const tow_sim_cost_t *cost = &executable->cost;
    tow_signature_t *signature = &executable->base.signature;
    signature->name = cost->name;
    signature->argument_count = cost->argument_count;
    signature->arguments = cost->arguments;
    signature->result_count = cost->result_count;
    signature->results = cost->results;
    signature->alias_count = cost->alias_count;
    signature->aliases = cost->aliases;
    signature->temporary_bytes = cost->temporary_bytes;
    for (size_t i = 0; i < cost->step_count; i++)
        signature->flops += (double)cost->steps[i].flops;
    executable->value = tow_sim_value_begin(cost->name);
}

static tow_status_t build(driver_t *driver, executable_t *executable,
                          const tow_compile_t *compile)
{
    TOW_RETURN_IF_ERROR(tow_sim_cost_parse(
        compile->program.data, compile->program.size, &executable->cost));
    executable->stages =
        tow_calloc(executable->cost.step_count + 1, sizeof(stage_t));
    if (executable->stages == NULL) return out_of_memory();
    TOW_RETURN_IF_ERROR(assign(driver, executable, compile->options));
    fill_signature(executable);
    return tow_status_annotate(plan_stages(driver, executable),
                               "cost program %s", executable->cost.name);
}

void tow_sim_executable_free(executable_t *executable)
{
    driver_t *driver = tow_sim_driver_of(executable->base.driver);
    driver->counts.executables--;
    tow_list_remove(&executable->in_driver);
    tow_sim_assignment_release(driver->fabric, executable->assignment);
    tow_sim_cost_deinit(&executable->cost);
    tow_free(executable->stages);
    tow_free(executable->local_devices);
    tow_free(executable->local_positions);
    tow_free(executable);
}

static tow_status_t make_executable(driver_t *driver,
                                    const tow_compile_t *compile,
                                    executable_t **out_executable)
{
    *out_executable = NULL;
    executable_t *executable = tow_calloc(1, sizeof(*executable));
    if (executable == NULL) return out_of_memory();
    executable->base.driver = &driver->base;
    executable->reference_count = 1;
    driver->counts.executables++;
    tow_list_append(&driver->executables, &executable->in_driver);
    tow_status_t status = build(driver, executable, compile);
    if (status != TOW_OK) {
        tow_sim_executable_free(executable);
        return status;
    }
    *out_executable = executable;
    return TOW_OK;
}

/* -- The table's entries --------------------------------------------------- */

/* A compile until its `done` runs. */
typedef struct pending {
    tow_compile_t *next;
    tow_status_t status;
    executable_t *executable;
} pending_t;

static pending_t *pending_of(tow_compile_t *compile)
{
    _Static_assert(sizeof(pending_t) <= sizeof(compile->private_),
                   "it fits into the operation");
    return (pending_t *)(void *)compile->private_;
}

static void tell_later(driver_t *driver, tow_compile_t *compile)
{
    if (driver->compiles == NULL)
        driver->compiles = compile;
    else
        pending_of(driver->compiles_last)->next = compile;
    driver->compiles_last = compile;
    tow_sim_driver_kick(driver);
}

void tow_sim_compiles_finish(driver_t *driver)
{
    tow_compile_t *compile = driver->compiles;
    driver->compiles = NULL;
    while (compile != NULL) {
        pending_t pending = *pending_of(compile);
        compile->done(compile, pending.status,
                      pending.executable != NULL ? &pending.executable->base
                                                 : NULL);
        compile = pending.next;
    }
}

void tow_sim_compiles_discard(driver_t *driver)
{
    for (tow_compile_t *compile = driver->compiles; compile != NULL;
         compile = pending_of(compile)->next)
        tow_status_release(pending_of(compile)->status);
    driver->compiles = NULL;
}

static tow_status_t check_stage(const driver_t *driver,
                                const executable_t *executable,
                                const stage_t *stage)
{
    const assignment_t *assignment = executable->assignment;
    for (size_t i = 0; i < executable->base.local_device_count; i++) {
        const uint32_t position = executable->local_positions[i];
        const uint32_t rank = position / stage->stride % stage->group_size;
        const uint32_t start = position - rank * stage->stride;
        for (uint32_t k = 0; k < stage->group_size; k++) {
            const int64_t id = assignment->ids[start + k * stage->stride];
            size_t index;
            if (find_local(driver, id, &index)) continue;
            return TOW_ERROR(
                TOW_UNIMPLEMENTED,
                "%s of devices %lld and %lld: simulated devices of two "
                "processes have no common fabric: run it on the devices of one "
                "worker, or on a simulated cluster (`tow sim`)",
                tow_sim_collective_name(stage->kind),
                (long long)assignment->ids[position], (long long)id);
        }
    }
    return TOW_OK;
}

/* A fabric of its own has only these devices: members on other hosts would
 * never arrive. A program that is only compiled here may run elsewhere. */
static tow_status_t check_members_meet(const driver_t *driver,
                                       const executable_t *executable)
{
    if (driver->own_fabric == NULL) return TOW_OK;
    for (size_t i = 0; i < executable->stage_count; i++)
        if (executable->stages[i].has_collective)
            TOW_RETURN_IF_ERROR(
                check_stage(driver, executable, &executable->stages[i]));
    return TOW_OK;
}

static tow_status_t make_later(driver_t *driver, tow_compile_t *compile)
{
    TOW_RETURN_IF_ERROR(tow_sim_check_open_driver(driver));
    pending_t *pending = pending_of(compile);
    *pending = (pending_t){0};
    pending->status = make_executable(driver, compile, &pending->executable);
    tell_later(driver, compile);
    return TOW_OK;
}

tow_status_t tow_sim_load(tow_driver_t *base, tow_compile_t *load)
{
    driver_t *driver = tow_sim_driver_of(base);
    TOW_RETURN_IF_ERROR(make_later(driver, load));
    pending_t *pending = pending_of(load);
    if (pending->status != TOW_OK) return TOW_OK;
    pending->status = check_members_meet(driver, pending->executable);
    if (pending->status == TOW_OK) return TOW_OK;
    tow_sim_executable_unref(pending->executable);
    pending->executable = NULL;
    return TOW_OK;
}

tow_status_t tow_sim_compile(tow_driver_t *base, tow_compile_t *compile)
{
    if (compile->format != TOW_PROGRAM_COST)
        return TOW_ERROR(TOW_UNIMPLEMENTED,
                         "a simulated device runs cost programs "
                         "(TOW_PROGRAM_COST), not StableHLO");
    return make_later(tow_sim_driver_of(base), compile);
}

tow_status_t tow_sim_serialize(tow_executable_t *base, void **out_bytes,
                               size_t *out_size)
{
    const executable_t *executable = (const executable_t *)base;
    char *text = NULL;
    TOW_RETURN_IF_ERROR(tow_sim_cost_print(&executable->cost, &text, out_size));
    *out_bytes = text;
    return TOW_OK;
}

void tow_sim_executable_retain(tow_executable_t *base)
{
    ((executable_t *)base)->reference_count++;
}

void tow_sim_executable_unref(executable_t *executable)
{
    TOW_ASSERT(executable->reference_count > 0);
    if (--executable->reference_count > 0) return;
    driver_t *driver = tow_sim_driver_of(executable->base.driver);
    tow_sim_executable_free(executable);
    if (driver->is_closing) tow_sim_driver_kick(driver);
}

void tow_sim_executable_release(tow_executable_t *base)
{
    tow_sim_executable_unref((executable_t *)base);
}
