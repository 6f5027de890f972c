/* A client of the simulated cluster: opens slices, compiles, builds programs,
 * and then uploads, runs, downloads and deletes at random. It checks that every
 * future settles once, that a fault explains every error, and that downloaded
 * bytes are those that it has worked out itself. */
#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "simcluster/client_impl.h"

void sim_client_fail(sim_client_t *self, tow_status_t take_status)
{
    tow_sim_fail(self->cluster->sim,
                 tow_status_annotate(take_status, "%s", self->process->name));
}

/* -- Errors ---------------------------------------------------------------------- */

/* True if injected faults or the memory limit explain the error. */
static bool is_explained(const sim_client_t *self, tow_status_t status)
{
    const simcluster_t *cluster = self->cluster;
    const tow_code_t code = tow_status_code(status);
    if (code == TOW_CODE_OK) return true;
    if (code == TOW_RESOURCE_EXHAUSTED && cluster->is_tight &&
        !cluster->is_spilling)
        return true;
    if (code == TOW_CANCELLED && (self->is_shut || self->has_cancelled))
        return true;
    if (cluster->is_calm) return false;
    /* A host function that returns an error is ABORTED; these codes are for one
     * that hangs or crashes. */
    if (code == TOW_DEADLINE_EXCEEDED || code == TOW_INTERNAL)
        return strstr(tow_status_message(status), "host function") != NULL;
    return code == TOW_UNAVAILABLE || code == TOW_ABORTED ||
           code == TOW_CANCELLED ||
           (code == TOW_DATA_LOSS && cluster->is_damaging);
}

bool sim_client_check_status(sim_client_t *self, tow_status_t status,
                             const char *what)
{
    tow_code_t code = tow_status_code(status);
    if (code != TOW_CODE_OK)
        tow_log(&self->env->log, TOW_LOG_INFO, "failed",
                TOW_F_STR("what", what),
                TOW_F_STR("why", tow_status_message(status)));
    if (!is_explained(self, status))
        sim_client_fail(self, tow_status_annotate(
                                  tow_status_retain(status),
                                  "no fault explains this error of %s", what));
    if (code != TOW_CODE_OK && code != TOW_RESOURCE_EXHAUSTED &&
        !(code == TOW_CANCELLED && self->has_cancelled))
        self->is_broken = true;
    return code == TOW_CODE_OK;
}

bool sim_client_try(sim_client_t *self, tow_status_t take_status,
                    const char *what)
{
    bool ok = sim_client_check_status(self, take_status, what);
    tow_status_release(take_status);
    return ok;
}

/* -- Futures --------------------------------------------------------------------- */

void sim_client_free_future(sim_future_t *future)
{
    tow_list_remove(&future->node);
    future->client->future_count--;
    sim_shard_release(&future->expected);
    tow_free(future->bytes);
    tow_free(future);
}

static void fail_difference(sim_client_t *self, const sim_future_t *future,
                            const uint8_t *expected)
{
    const sim_origin_t *origin = &future->origin;
    size_t at = 0;
    while (future->bytes[at] == expected[at])
        at++;
    sim_client_fail(
        self, TOW_ERROR(TOW_INTERNAL,
                        "shard %zu of %s (run %" PRIu64 ", node %u): byte %zu "
                        "of %zu is 0x%02x, and should be 0x%02x",
                        future->shard, origin->what, origin->run, origin->node,
                        at, future->size, future->bytes[at], expected[at]));
}

/* Compares the downloaded bytes with those that the client has worked out. */
static void compare(sim_client_t *self, const sim_future_t *future)
{
    tow_simcluster_stats_t *stats = &self->cluster->stats;
    uint8_t *expected = tow_malloc(future->size);
    TOW_ASSERT(expected != NULL && future->expected.size == future->size);
    sim_shard_show(&future->expected, expected);
    if (memcmp(future->bytes, expected, future->size) != 0)
        fail_difference(self, future, expected);
    stats->bytes_checked += future->size;
    stats->results_checked += future->origin.run > 0;
    tow_free(expected);
}

/* A run that needs more memory than a device has. */
static void settle_giant(sim_client_t *self, tow_status_t status)
{
    if (tow_status_code(status) == TOW_RESOURCE_EXHAUSTED)
        self->cluster->stats.giants_refused++;
    else if (status == TOW_OK)
        sim_client_fail(self, TOW_ERROR(TOW_INTERNAL,
                                        "a run has ended that needs more "
                                        "memory than a device has"));
    else
        (void)!sim_client_check_status(self, status, "a giant run");
}

static void settled(void *context, tow_status_t take_status)
{
    sim_future_t *future = context;
    sim_client_t *self = future->client;
    tow_simcluster_stats_t *stats = &self->cluster->stats;
    if (future->must_fail) {
        settle_giant(self, take_status);
    } else {
        const bool ok =
            sim_client_check_status(self, take_status, future->what);
        if (strcmp(future->what, "a run") == 0)
            *(ok ? &stats->runs_done : &stats->runs_failed) += 1;
        if (ok && future->is_expected) compare(self, future);
    }
    tow_status_release(take_status);
    sim_client_free_future(future);
}

sim_future_t *sim_client_make_future(sim_client_t *self,
                                     tow_callback_t **out_callback)
{
    sim_future_t *future = tow_calloc(1, sizeof(*future));
    tow_callback_t *callback = tow_calloc(1, sizeof(*callback));
    TOW_ASSERT(future != NULL && callback != NULL);
    future->client = self;
    tow_list_append(&self->futures, &future->node);
    self->future_count++;
    callback->done = settled;
    callback->context = future;
    *out_callback = callback;
    return future;
}

void sim_client_expect_value(sim_client_t *self, tow_array_t *array,
                             const char *what)
{
    tow_callback_t *callback;
    sim_client_make_future(self, &callback)->what = what;
    tow_array_call_when_ready(array, callback);
}

/* -- Phases ------------------------------------------------------------------------ */

static void discard_functions(tow_function_t **functions, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (functions[i] != NULL) tow_function_release_locked(functions[i]);
        functions[i] = NULL;
    }
}

static void discard_everything(sim_client_t *self)
{
    while (self->array_count > 0)
        sim_client_delete_array(self, self->array_count - 1);
    for (size_t i = 0; i < self->routine_count; i++)
        sim_client_discard_routine(&self->routines[i]);
    self->routine_count = 0;
    discard_functions(&self->functions[0][0][0],
                      SIM_SLICES_MAX * SIM_SIZES * SIM_FUNCTIONS);
    discard_functions(&self->hosts[0][0][0],
                      SIM_SLICES_MAX * SIM_SIZES * SIM_HOSTS);
    discard_functions(self->giants, SIM_SLICES_MAX);
    for (size_t i = 0; i < self->slice_count; i++)
        tow_slice_release_locked(self->slices[i]);
    self->slice_count = 0;
}

/* 1: all have settled without error; 0: not all have settled; -1: one
 * failed. */
static int check_settling(sim_client_t *self, const tow_completion_t *settling,
                          int before, const char *what)
{
    if (before < 0) return before;
    if (!settling->settled) return 0;
    return sim_client_check_status(self, settling->error, what) ? before : -1;
}

static int check_functions(sim_client_t *self)
{
    int state = 1;
    for (size_t slice = 0; slice < self->slice_count; slice++)
        for (uint32_t i = 0; i < SIM_SIZES * SIM_FUNCTIONS; i++)
            state = check_settling(
                self,
                tow_function_compiling(self->functions[slice][i / SIM_FUNCTIONS]
                                                      [i % SIM_FUNCTIONS]),
                state, "a function");
    for (size_t slice = 0; slice < self->slice_count && self->has_hosts;
         slice++)
        for (uint32_t i = 0; i < SIM_SIZES * SIM_HOSTS; i++)
            state = check_settling(
                self,
                tow_function_compiling(
                    self->hosts[slice][i / SIM_HOSTS][i % SIM_HOSTS]),
                state, "a host function");
    for (size_t slice = 0; slice < self->slice_count; slice++)
        if (self->giants[slice] != NULL)
            state = check_settling(self,
                                   tow_function_compiling(self->giants[slice]),
                                   state, "a giant function");
    return state;
}

static int check_programs(sim_client_t *self)
{
    int state = 1;
    for (size_t i = 0; i < self->routine_count; i++)
        state =
            check_settling(self, tow_program_adding(self->routines[i].program),
                           state, "a program");
    return state;
}

/* While workers are down there may be too few devices, or none. */
static int check_slices(sim_client_t *self)
{
    int state = 1;
    for (size_t i = 0; i < self->slice_count; i++) {
        const tow_completion_t *opening = tow_slice_opening(self->slices[i]);
        tow_code_t code = tow_status_code(opening->error);
        if (opening->settled &&
            (code == TOW_RESOURCE_EXHAUSTED || code == TOW_NOT_FOUND))
            self->is_broken = true, state = -1;
        else
            state = check_settling(self, opening, state, "a slice");
    }
    return state;
}

static void leave(sim_client_t *self)
{
    self->phase = PHASE_LEAVE;
    discard_everything(self);
    self->is_shut = true;
    tow_client_shut(self->client);
}

/* Slices, functions and programs survive the loss of devices; values do not. */
static bool may_keep_programs(sim_client_t *self)
{
    return self->phase == PHASE_WORK && self->routine_count > 0 &&
           sim_client_below(self, 2) == 0;
}

/* Starts again within the same session. */
static void start_again(sim_client_t *self)
{
    self->is_broken = false;
    if (self->process->operations_left > 0) self->process->operations_left--;
    if (may_keep_programs(self)) {
        while (self->array_count > 0)
            sim_client_delete_array(self, self->array_count - 1);
        return;
    }
    discard_everything(self);
    self->phase = PHASE_SLICES;
    (void)!sim_client_request_slices(self);
}

static void dial(sim_client_t *self)
{
    tow_client_dial_options_t options = {.address = "sim:controller",
                                         .name = self->process->name};
    self->is_shut = self->is_broken = self->has_cancelled = false;
    self->is_staying = sim_client_below(self, 4) > 0;
    self->generation = 0;
    if (!sim_client_try(self,
                        tow_client_dial(self->env, &options, &self->client),
                        "dialling"))
        return;
    self->cluster->stats.sessions++;
    self->phase = PHASE_OPENING;
}

static void after_leaving(sim_client_t *self)
{
    if (!tow_client_is_quiet(self->client)) return;
    if (!tow_list_is_empty(&self->futures)) {
        sim_client_fail(self,
                        TOW_ERROR(TOW_INTERNAL,
                                  "the client is closed and a future has not "
                                  "settled"));
        return;
    }
    tow_client_free(self->client);
    self->client = NULL;
    self->process->is_done = self->process->operations_left == 0;
    self->phase = self->process->is_done ? PHASE_DONE : PHASE_DIAL;
}

static void advance(sim_client_t *self, int state,
                    bool (*request)(sim_client_t *), sim_phase_t next)
{
    if (state <= 0) return;
    self->phase = next;
    if (request != NULL) (void)!request(self);
}

static void work(sim_client_t *self)
{
    if (self->future_count > self->future_count_max) return;
    for (size_t burst = 1 + sim_client_below(self, 4); burst > 0; burst--) {
        if (self->process->operations_left == 0 || self->routine_count == 0) {
            sim_client_audit(self);
            self->phase = PHASE_DRAIN;
            return;
        }
        sim_client_operate(self);
        if (self->is_broken) return;
    }
}

/* The controller is disconnected. A client that keeps its session learns by use
 * that its objects are lost. */
static void on_controller_disconnected(sim_client_t *self)
{
    (void)!sim_client_check_status(
        self, tow_client_disconnect_cause(self->client), "the session");
    if (!self->is_staying || self->phase == PHASE_OPENING) leave(self);
}

static void count_reconnection(sim_client_t *self)
{
    if (self->generation == tow_client_generation(self->client)) return;
    self->generation = tow_client_generation(self->client);
    self->cluster->stats.reconnections++;
}

static void step(sim_client_t *self)
{
    if (self->phase == PHASE_DIAL) {
        dial(self);
        return;
    }
    if (self->phase == PHASE_LEAVE) {
        after_leaving(self);
        return;
    }
    if (tow_client_disconnect_cause(self->client) != TOW_OK) {
        on_controller_disconnected(self);
        return;
    }
    count_reconnection(self);
    if (self->is_broken) {
        start_again(self);
        return;
    }
    switch (self->phase) {
    case PHASE_OPENING:
        advance(self, tow_client_opening(self->client)->settled,
                sim_client_request_slices, PHASE_SLICES);
        return;
    case PHASE_SLICES:
        advance(self, check_slices(self), sim_client_request_functions,
                PHASE_FUNCTIONS);
        return;
    case PHASE_FUNCTIONS:
        advance(self, check_functions(self), sim_client_request_programs,
                PHASE_PROGRAMS);
        return;
    case PHASE_PROGRAMS:
        advance(self, check_programs(self), NULL, PHASE_WORK);
        return;
    case PHASE_WORK: work(self); return;
    case PHASE_DRAIN:
        if (tow_list_is_empty(&self->futures)) leave(self);
        return;
    default: return;
    }
}

/* Called after every step. */
static void check(const sim_client_t *self)
{
    const bool is_connected =
        self->phase != PHASE_DIAL && self->phase != PHASE_DONE;
    TOW_ASSERT((self->client != NULL) == is_connected);
    TOW_ASSERT(self->slice_count <= SIM_SLICES_MAX);
    TOW_ASSERT(self->routine_count <= SIM_PROGRAMS_MAX);
    TOW_ASSERT(self->array_count <= SIM_ARRAYS_MAX);
    TOW_ASSERT(is_connected ||
               (self->slice_count == 0 && self->routine_count == 0 &&
                self->array_count == 0 && tow_list_is_empty(&self->futures)));
    TOW_ASSERT(self->process->is_done == (self->phase == PHASE_DONE));
    for (size_t i = 0; i < self->array_count; i++)
        TOW_ASSERT(self->arrays[i].array != NULL &&
                   self->arrays[i].slice < self->slice_count);
}

static void on_timer(tow_timer_t *timer)
{
    sim_client_t *self = TOW_CONTAINER_OF(timer, sim_client_t, timer);
    step(self);
    check(self);
    if (self->phase == PHASE_DONE) return;
    int64_t pause_ns =
        (int64_t)(1 + sim_client_below(self, 20)) * SIM_MILLISECOND_NS / 4;
    if (self->is_broken || self->phase == PHASE_DIAL)
        pause_ns += 50 * SIM_MILLISECOND_NS;
    tow_env_timer_start(self->env, &self->timer,
                        tow_env_now_ns(self->env) + pause_ns);
}

/* -- Starting and destroying ---------------------------------------------- */

static tow_status_t start(tow_env_t *env, void *argument, void **out_machine)
{
    sim_process_t *process = argument;
    sim_client_t *self = tow_calloc(1, sizeof(*self));
    if (self == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    self->process = process;
    self->cluster = process->cluster;
    self->env = env;
    self->phase = process->is_done ? PHASE_DONE : PHASE_DIAL;
    self->timer.fire = on_timer;
    tow_random_init(&self->random, tow_random_next(tow_env_random(env)) +
                                       ++process->start_count);
    tow_list_init(&self->futures);
    /* Some wait for results, and see the effects of faults; others start
     * everything at once. */
    self->future_count_max = sim_client_below(self, 4) == 0
                                 ? SIZE_MAX
                                 : 4 + sim_client_below(self, 60);
    if (!process->is_done)
        tow_env_timer_start(env, &self->timer, tow_env_now_ns(env));
    *out_machine = self;
    return TOW_OK;
}

static void destroy(void *machine)
{
    sim_client_t *self = machine;
    if (self->client != NULL) {
        tow_client_discard(self->client);
        discard_everything(self);
        tow_client_free(self->client);
    }
    while (!tow_list_is_empty(&self->futures))
        sim_client_free_future(
            TOW_CONTAINER_OF(self->futures.next, sim_future_t, node));
    tow_free(self);
}

void tow_simcluster_client_check(const void *machine)
{
    const sim_client_t *self = machine;
    if (self != NULL && self->client != NULL) tow_client_check(self->client);
}

const char *tow_simcluster_client_awaits(const void *machine)
{
    const sim_client_t *self = machine;
    if (self == NULL || tow_list_is_empty(&self->futures)) return "nothing";
    return TOW_CONTAINER_OF(self->futures.next, sim_future_t, node)->what;
}

const tow_sim_program_t tow_simcluster_client_program = {.start = start,
                                                         .destroy = destroy};
