/* Work jobs. A job starts between turns, when the turn that submitted it has
 * been charged: `run` is called right there, and `done` is a turn after the
 * job's cost has passed. A frozen process starts none. Helper threads do not
 * occupy a core. */
#include "env/sim/sim_impl.h"

typedef enum job_phase {
    JOB_WAITING,   /* can still be cancelled */
    JOB_CANCELLED, /* never starts */
    JOB_BEGUN,     /* or cancelled: `done` is next */
} job_phase_t;

typedef struct job {
    tow_sim_source_t source;
    tow_list_t by_node;
    tow_work_t *work;    /* lent by the machine; NULL when that is dead */
    tow_status_t status; /* owned: the result of `run` */
    tow_sim_node_t *node;
    job_phase_t phase;
} job_t;

/* The work's private field points at its job. */
static job_t *job_of(const tow_work_t *work)
{
    return (job_t *)(void *)work->next_;
}

static void job_free(tow_sim_t *sim, job_t *job)
{
    tow_list_remove(&job->by_node);
    tow_status_release(job->status);
    tow_pool_give(&sim->jobs, job);
}

static void finish(tow_sim_t *sim, job_t *job)
{
    tow_sim_node_t *node = job->node;
    tow_work_t *work = job->work;
    tow_status_t status = job->status;
    job->status = TOW_OK;
    job_free(sim, job);
    tow_sim_record(sim, &(tow_sim_event_t){.time_ns = sim->now_ns,
                                           .kind = EVENT_WORK,
                                           .node = node->index,
                                           .peer = EVENT_NO_NODE,
                                           .content = tow_status_code(status)});
    tow_sim_turn_begin(node, 0);
    work->done(work, status);
    tow_sim_turn_end(node);
    tow_sim_env_check_empty(node);
}

static int64_t job_perform(tow_sim_t *sim, tow_sim_source_t *source)
{
    job_t *job = TOW_CONTAINER_OF(source, job_t, source);
    if (job->work == NULL) {
        job_free(sim, job);
        return TOW_TIME_NEVER;
    }
    if (job->phase == JOB_BEGUN) {
        finish(sim, job);
        return TOW_TIME_NEVER;
    }
    int64_t cost_ns = job->work->cost_ns;
    TOW_ASSERT(cost_ns >= 0);
    if (job->phase == JOB_CANCELLED) {
        job->status = tow_status_bare(TOW_CANCELLED);
        cost_ns = 0;
    } else {
        job->status = job->work->run(job->work);
    }
    job->phase = JOB_BEGUN;
    return sim->now_ns +
           (cost_ns < TOW_SIM_TIME_MAX ? cost_ns : TOW_SIM_TIME_MAX);
}

void tow_sim_work_start(tow_env_t *env, tow_work_t *work)
{
    tow_sim_node_t *node = tow_sim_node_of(env);
    tow_sim_t *sim = node->sim;
    job_t *job = tow_pool_take(&sim->jobs);
    if (job == NULL) {
        tow_sim_out_of_memory(sim);
        return;
    }
    *job = (job_t){.source = {.perform = job_perform, .node = node},
                   .work = work,
                   .node = node};
    work->env_ = env;
    work->next_ = (tow_work_t *)(void *)job;
    tow_list_append(&node->jobs, &job->by_node);
    tow_sim_schedule_source(sim, &job->source, sim->now_ns);
}

void tow_sim_work_cancel(tow_env_t *env, tow_work_t *work)
{
    job_t *job = job_of(work);
    TOW_ASSERT(job != NULL && job->work == work && work->env_ == env);
    if (job->phase == JOB_WAITING) job->phase = JOB_CANCELLED;
}

void tow_sim_works_cancel(tow_sim_node_t *node)
{
    for (tow_list_t *at = node->jobs.next; at != &node->jobs; at = at->next) {
        job_t *job = TOW_CONTAINER_OF(at, job_t, by_node);
        if (job->phase == JOB_WAITING) job->phase = JOB_CANCELLED;
    }
}

void tow_sim_works_discard(tow_sim_node_t *node)
{
    for (tow_list_t *at; (at = tow_list_pop_front(&node->jobs)) != NULL;)
        TOW_CONTAINER_OF(at, job_t, by_node)->work = NULL;
}

size_t tow_sim_job_bytes(void)
{
    return sizeof(job_t);
}
