/* A client of the simulated cluster: opens slices, compiles, builds programs,
 * and then uploads, runs, downloads and drops at random. Whatever it is told must
 * make sense: every future settles once, errors are those that faults explain,
 * and bytes come back as they went. */
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "tool/sim_client_impl.h"

void sim_client_fail(sim_client_t *self, tow_status_t take_status)
{
    tow_sim_fail(self->cluster->sim,
                 tow_status_annotate(take_status, "%s", self->process->name));
}

/* -- Errors ---------------------------------------------------------------------- */

/* Which errors do faults, and the memory that there is, explain? */
static bool is_explained(const sim_client_t *self, tow_status_t status)
{
    const sim_cluster_t *cluster = self->cluster;
    const tow_code_t code = tow_status_code(status);
    if (code == TOW_CODE_OK) return true;
    if (code == TOW_RESOURCE_EXHAUSTED && cluster->is_tight &&
        !cluster->is_spilling)
        return true;
    if (self->is_shut && code == TOW_CANCELLED) return true;
    if (cluster->is_calm) return false;
    /* One that fails is ABORTED. */
    if (code == TOW_DEADLINE_EXCEEDED || code == TOW_INTERNAL)
        return strstr(tow_status_message(status), "host function") != NULL;
    return code == TOW_UNAVAILABLE || code == TOW_ABORTED ||
           code == TOW_CANCELLED ||
           (code == TOW_DATA_LOSS && cluster->is_damaging);
}

/* True if all is well. Anything but want of memory breaks what we have. */
bool sim_client_look_at(sim_client_t *self, tow_status_t status,
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
                                  "nothing explains this error of %s", what));
    if (code != TOW_CODE_OK && code != TOW_RESOURCE_EXHAUSTED)
        self->is_broken = true;
    return code == TOW_CODE_OK;
}

bool sim_client_try(sim_client_t *self, tow_status_t take_status,
                    const char *what)
{
    bool ok = sim_client_look_at(self, take_status, what);
    tow_status_release(take_status);
    return ok;
}

/* -- Futures --------------------------------------------------------------------- */

void sim_client_free_future(sim_future_t *future)
{
    tow_list_remove(&future->node);
    tow_free(future->bytes);
    tow_free(future);
}

static void settled(void *context, tow_status_t take_status)
{
    sim_future_t *future = context;
    sim_client_t *self = future->client;
    tow_sim_cluster_stats_t *stats = &self->cluster->stats;
    bool ok = sim_client_look_at(self, take_status, future->what);
    if (strcmp(future->what, "a run") == 0)
        *(ok ? &stats->runs_done : &stats->runs_failed) += 1;
    if (ok && future->expected != NULL) {
        stats->bytes_checked += future->size;
        if (memcmp(future->bytes, future->expected, future->size) != 0)
            sim_client_fail(
                self, TOW_ERROR(TOW_INTERNAL,
                                "%zu bytes came back other than they went",
                                future->size));
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

/* All handles go. */
static void drop_functions(tow_function_t **functions, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (functions[i] != NULL) tow_function_drop(functions[i]);
        functions[i] = NULL;
    }
}

static void drop_everything(sim_client_t *self)
{
    while (self->array_count > 0)
        sim_client_drop_array(self, self->array_count - 1);
    for (size_t i = 0; i < self->routine_count; i++)
        if (self->routines[i].program != NULL)
            tow_program_drop(self->routines[i].program);
    self->routine_count = 0;
    drop_functions(&self->functions[0][0][0],
                   SIM_SLICES_MAX * SIM_SIZES * SIM_FUNCTIONS);
    drop_functions(&self->hosts[0][0][0],
                   SIM_SLICES_MAX * SIM_SIZES * SIM_HOSTS);
    for (size_t i = 0; i < self->slice_count; i++)
        tow_slice_drop(self->slices[i]);
    self->slice_count = 0;
}

/* 1: all are settled well; 0: not yet; -1: one is not well. */
static int look_at_all(sim_client_t *self, const tow_settling_t *settling,
                       int before, const char *what)
{
    if (before < 0) return before;
    if (!settling->settled) return 0;
    return sim_client_look_at(self, settling->error, what) ? before : -1;
}

static int look_at_functions(sim_client_t *self)
{
    int state = 1;
    for (size_t slice = 0; slice < self->slice_count; slice++)
        for (uint32_t i = 0; i < SIM_SIZES * SIM_FUNCTIONS; i++)
            state = look_at_all(
                self,
                tow_function_compiling(self->functions[slice][i / SIM_FUNCTIONS]
                                                      [i % SIM_FUNCTIONS]),
                state, "a function");
    for (size_t slice = 0; slice < self->slice_count && self->has_hosts;
         slice++)
        for (uint32_t i = 0; i < SIM_SIZES * SIM_HOSTS; i++)
            state = look_at_all(
                self,
                tow_function_compiling(
                    self->hosts[slice][i / SIM_HOSTS][i % SIM_HOSTS]),
                state, "a host function");
    return state;
}

static int look_at_programs(sim_client_t *self)
{
    int state = 1;
    for (size_t i = 0; i < self->routine_count; i++)
        state = look_at_all(self, tow_program_adding(self->routines[i].program),
                            state, "a program");
    return state;
}

/* There may be too few devices, or none, while workers are away. */
static int look_at_slices(sim_client_t *self)
{
    int state = 1;
    for (size_t i = 0; i < self->slice_count; i++) {
        const tow_settling_t *opening = tow_slice_opening(self->slices[i]);
        tow_code_t code = tow_status_code(opening->error);
        if (opening->settled &&
            (code == TOW_RESOURCE_EXHAUSTED || code == TOW_NOT_FOUND))
            self->is_broken = true, state = -1;
        else
            state = look_at_all(self, opening, state, "a slice");
    }
    return state;
}

static void leave(sim_client_t *self)
{
    self->phase = PHASE_LEAVE;
    drop_everything(self);
    self->is_shut = true;
    tow_client_shut(self->client);
}

/* Slices, functions and programs outlive devices: only values are lost. */
static bool may_go_on(sim_client_t *self)
{
    return self->phase == PHASE_WORK && self->routine_count > 0 &&
           sim_client_below(self, 2) == 0;
}

/* Begins anew with what the session is good for. */
static void begin_anew(sim_client_t *self)
{
    self->is_broken = false;
    if (self->process->operations_left > 0) self->process->operations_left--;
    if (may_go_on(self)) {
        while (self->array_count > 0)
            sim_client_drop_array(self, self->array_count - 1);
        return;
    }
    drop_everything(self);
    self->phase = PHASE_SLICES;
    (void)!sim_client_ask_slices(self);
}

static void dial(sim_client_t *self)
{
    tow_machine_options_t options = {.address = "sim:controller",
                                     .name = self->process->name};
    self->is_shut = self->is_broken = false;
    self->is_staying = sim_client_below(self, 4) > 0;
    self->life = 0;
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

static void advance(sim_client_t *self, int state, bool (*ask)(sim_client_t *),
                    sim_phase_t next)
{
    if (state <= 0) return;
    self->phase = next;
    if (ask != NULL) (void)!ask(self);
}

static void work(sim_client_t *self)
{
    for (size_t burst = 1 + sim_client_below(self, 4); burst > 0; burst--) {
        if (self->process->operations_left == 0 || self->routine_count == 0) {
            self->phase = PHASE_DRAIN;
            return;
        }
        sim_client_operate(self);
        if (self->is_broken) return;
    }
}

/* There is no controller now. What we have is of no use any more: whoever stays
 * finds out by using it. */
static void do_without(sim_client_t *self)
{
    (void)!sim_client_look_at(self, tow_client_lost(self->client),
                              "the session");
    if (!self->is_staying || self->phase == PHASE_OPENING) leave(self);
}

static void note_comeback(sim_client_t *self)
{
    if (self->life == tow_client_life(self->client)) return;
    self->life = tow_client_life(self->client);
    self->cluster->stats.comebacks++;
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
    if (tow_client_lost(self->client) != TOW_OK) {
        do_without(self);
        return;
    }
    note_comeback(self);
    if (self->is_broken) {
        begin_anew(self);
        return;
    }
    switch (self->phase) {
    case PHASE_OPENING:
        advance(self, tow_client_opening(self->client)->settled,
                sim_client_ask_slices, PHASE_SLICES);
        return;
    case PHASE_SLICES:
        advance(self, look_at_slices(self), sim_client_ask_functions,
                PHASE_FUNCTIONS);
        return;
    case PHASE_FUNCTIONS:
        advance(self, look_at_functions(self), sim_client_ask_programs,
                PHASE_PROGRAMS);
        return;
    case PHASE_PROGRAMS:
        advance(self, look_at_programs(self), NULL, PHASE_WORK);
        return;
    case PHASE_WORK: work(self); return;
    case PHASE_DRAIN:
        if (tow_list_is_empty(&self->futures)) leave(self);
        return;
    default: return;
    }
}

static void on_timer(tow_timer_t *timer)
{
    sim_client_t *self = TOW_CONTAINER_OF(timer, sim_client_t, timer);
    step(self);
    if (self->phase == PHASE_DONE) return;
    int64_t pause_ns =
        (int64_t)(1 + sim_client_below(self, 20)) * SIM_MILLISECOND_NS / 4;
    if (self->is_broken || self->phase == PHASE_DIAL)
        pause_ns += 50 * SIM_MILLISECOND_NS;
    tow_env_timer_start(self->env, &self->timer,
                        tow_env_now_ns(self->env) + pause_ns);
}

/* -- Life -------------------------------------------------------------------------- */

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
    tow_random_init(&self->random,
                    tow_random_next(tow_env_random(env)) + ++process->life);
    tow_list_init(&self->futures);
    if (!process->is_done)
        tow_env_timer_start(env, &self->timer, tow_env_now_ns(env));
    *out_machine = self;
    return TOW_OK;
}

static void destroy(void *machine)
{
    sim_client_t *self = machine;
    if (self->client != NULL) {
        tow_client_abandon(self->client);
        drop_everything(self);
        tow_client_free(self->client);
    }
    while (!tow_list_is_empty(&self->futures))
        sim_client_free_future(
            TOW_CONTAINER_OF(self->futures.next, sim_future_t, node));
    tow_free(self);
}

const char *tow_sim_client_awaits(const void *machine)
{
    const sim_client_t *self = machine;
    if (self == NULL || tow_list_is_empty(&self->futures)) return "nothing";
    return TOW_CONTAINER_OF(self->futures.next, sim_future_t, node)->what;
}

const tow_sim_program_t tow_sim_client_program = {.start = start,
                                                  .destroy = destroy};
