/* Late transfers: their order, their waits and their memory; and a model of
 * workers that follow them, with events in a random order. */
#include "ir/cluster_testing_impl.h"

#include "base/alloc.h"
#include "base/random.h"
#include "ir/tuning.h"

#define MIB        (UINT64_C(1) << 20)
#define BIG        "f32[262144]"  /* 1 MiB */
#define HUGE_VALUE "f32[1048576]" /* 4 MiB */
#define SMALL      "f32[1024]"    /* 4 KiB */
#define VALUES     64

/* Slice i has one device, of process i. */
static void open_cluster(ir_cluster_t *cluster, const char *big)
{
    char text[64];
    ir_cluster_init(cluster);
    for (uint64_t slice = 1; slice < IR_CLUSTER_SLICES; slice++)
        ir_cluster_open_slice(cluster, slice, 1, (uint32_t)slice, 1);
    snprintf(text, sizeof(text), "%s -> %s", big, big);
    ir_cluster_define(cluster, 1, 1, text);
    snprintf(text, sizeof(text), "%s, %s -> %s", big, big, big);
    ir_cluster_define(cluster, 2, 1, text);
    snprintf(text, sizeof(text), "%s -> %s", big, SMALL);
    ir_cluster_define(cluster, 3, 1, text);
    snprintf(text, sizeof(text), "%s -> %s", SMALL, big);
    ir_cluster_define(cluster, 4, 1, text);
    ir_cluster_define(cluster, 5, 1, SMALL " -> " SMALL);
}

typedef struct text {
    char bytes[32768];
    size_t size;
} text_t;

__attribute__((format(printf, 2, 3))) static void add(text_t *text,
                                                      const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    text->size +=
        (size_t)vsnprintf(text->bytes + text->size,
                          sizeof(text->bytes) - text->size, format, arguments);
    va_end(arguments);
    assert_true(text->size < sizeof(text->bytes));
}

static uint64_t peak_of(ir_cluster_t *cluster, const tow_graph_t *program,
                        uint64_t slice)
{
    tow_graph_cost_t cost;
    must(tow_graph_cost(program, &cluster->scope.program,
                        (tow_slice_id_t){slice}, &cost));
    return cost.peak_bytes;
}

/* -- Programs that send 64 values from slice 1 to slice 2 ------------------ */

typedef enum sequence {
    IN_TURN, /* each value is used before the next one is computed */
    AFTER,   /* all are computed, then used in the same order */
    REVERSED,
} sequence_t;

/* Every use has a small result. */
static void write_values(text_t *text, sequence_t sequence, int producer,
                         int user)
{
    const char *type = producer == 1 ? BIG : SMALL;
    *text = (text_t){.size = 0};
    add(text, "program { %%0 = argument : %s on slice 1 ", type);
    for (int i = 0; i < VALUES; i++) {
        const int at = sequence == IN_TURN ? 1 + 2 * i : 1 + i;
        add(text, "%%%d = compute function %d on slice 1 (%%0) ", at, producer);
        if (sequence == IN_TURN)
            add(text, "%%%d = compute function %d on slice 2 (%%%d) ", at + 1,
                user, at);
    }
    for (int i = 0; sequence != IN_TURN && i < VALUES; i++)
        add(text, "%%%d = compute function %d on slice 2 (%%%d) ",
            1 + VALUES + i, user, sequence == AFTER ? 1 + i : VALUES - i);
    for (int i = 0; i < VALUES; i++)
        add(text, "%%%d = result (%%%d) ", 1 + 2 * VALUES + i,
            sequence == IN_TURN ? 2 + 2 * i : 1 + VALUES + i);
    add(text, "}");
}

static void expect_peaks(sequence_t sequence, uint64_t sent, uint64_t received)
{
    static ir_cluster_t cluster; /* large */
    static text_t text;
    open_cluster(&cluster, BIG);
    write_values(&text, sequence, 1, 3);
    tow_graph_t *program = ir_cluster_insert(&cluster, text.bytes);
    assert_int_equal(peak_of(&cluster, program, 1), sent);
    /* Beside the results so far. */
    assert_in_range(peak_of(&cluster, program, 2), received,
                    received + VALUES * 4096);
    tow_graph_destroy(program);
}

static void few_of_many_values_are_held_at_once(void **state)
{
    (void)state;
    const uint64_t behind = TOW_SEND_BEHIND_BYTES + MIB; /* and one in work */
    expect_peaks(IN_TURN, behind, 4 * MIB);
    /* All are computed before the first is used: the client's order. */
    expect_peaks(AFTER, VALUES * MIB, 4 * MIB);
    expect_peaks(REVERSED, VALUES * MIB, 4 * MIB);
}

static void small_values_are_not_late(void **state)
{
    (void)state;
    static ir_cluster_t cluster;
    static text_t text;
    open_cluster(&cluster, BIG);
    write_values(&text, IN_TURN, 5, 5);
    tow_graph_t *program = ir_cluster_insert(&cluster, text.bytes);
    assert_int_equal(peak_of(&cluster, program, 1), VALUES * 4096);
    assert_int_equal(peak_of(&cluster, program, 2), (VALUES + 1) * 4096);
    tow_lowered_t *lowered = ir_cluster_lower(&cluster, program, 2);
    for (size_t i = 0; i < lowered->step_count; i++)
        assert_int_equal(lowered->steps[i].memory_after, 0);
    tow_lowered_destroy(lowered);
    tow_graph_destroy(program);
}

static void a_late_transfer_comes_before_its_first_user(void **state)
{
    (void)state;
    static ir_cluster_t cluster;
    static text_t text;
    open_cluster(&cluster, BIG);
    write_values(&text, REVERSED, 1, 3);
    tow_graph_t *program = ir_cluster_insert(&cluster, text.bytes);
    tow_lowered_t *lowered = ir_cluster_lower(&cluster, program, 2);
    assert_int_equal(lowered->step_count, 2 * VALUES);
    for (size_t i = 0; i < lowered->step_count; i += 2) {
        const tow_lowered_step_t *transfer = &lowered->steps[i];
        const tow_lowered_step_t *user = &lowered->steps[i + 1];
        assert_non_null(transfer->route);
        assert_int_equal(user->inputs[0], transfer->first_output);
        assert_int_equal(user->index, transfer->index + 1);
        /* Four at once: after the end of the fourth computation before it. */
        const uint32_t wanted = i < 8 ? 0 : lowered->steps[i - 7].index + 1;
        assert_true(transfer->is_late);
        assert_int_equal(transfer->memory_after, wanted);
        assert_int_equal(transfer->sent_before, 0);
    }
    tow_lowered_destroy(lowered);
    tow_graph_destroy(program);
}

static void later_computations_wait_until_values_were_sent(void **state)
{
    (void)state;
    static ir_cluster_t cluster;
    static text_t text;
    open_cluster(&cluster, BIG);
    write_values(&text, IN_TURN, 1, 3);
    tow_graph_t *program = ir_cluster_insert(&cluster, text.bytes);
    tow_lowered_t *lowered = ir_cluster_lower(&cluster, program, 1);
    const size_t behind = 2 * (TOW_SEND_BEHIND_BYTES / MIB + 1);
    for (size_t i = 1; i < lowered->step_count; i += 2) {
        const tow_lowered_step_t *transfer = &lowered->steps[i];
        assert_non_null(transfer->route);
        assert_int_equal(transfer->memory_after, 0);
        const size_t waiting = i - 1 + behind;
        assert_int_equal(transfer->sent_before,
                         waiting < lowered->step_count
                             ? lowered->steps[waiting].index + 1
                             : 0);
    }
    tow_lowered_destroy(lowered);
    tow_graph_destroy(program);
}

/* A function requires the donation of the value: it comes after the
 * transfer. */
static void a_transfer_of_a_donated_value_is_not_late(void **state)
{
    (void)state;
    static ir_cluster_t cluster;
    open_cluster(&cluster, BIG);
    ir_cluster_function_t *update =
        ir_cluster_define(&cluster, 6, 1, BIG " -> " BIG);
    update->alias = (tow_alias_t){.required = true};
    update->signature.aliases = &update->alias;
    update->signature.alias_count = 1;
    tow_graph_t *program = ir_cluster_insert(
        &cluster, "program { %0 = argument : " BIG " on slice 1 "
                  "%1 = compute function 1 on slice 1 (%0) "
                  "%2 = compute function 6 on slice 1 (%1) "
                  "%3 = compute function 3 on slice 2 (%1) "
                  "%4 = result (%2) %5 = result (%3) }");
    tow_lowered_t *lowered = ir_cluster_lower(&cluster, program, 1);
    assert_int_equal(lowered->step_count, 3);
    assert_non_null(lowered->steps[1].route);
    tow_lowered_destroy(lowered);
    tow_graph_destroy(program);
}

static void without_memory_nothing_leaks_at(uint64_t nth, bool *out_has_failed)
{
    static ir_cluster_t cluster;
    static text_t text;
    tow_graph_cost_t cost;
    open_cluster(&cluster, BIG);
    write_values(&text, IN_TURN, 1, 3);
    tow_graph_t *program = ir_cluster_insert(&cluster, text.bytes);
    tow_alloc_fail_after(nth);
    tow_status_t status = tow_graph_cost(program, &cluster.scope.program,
                                         (tow_slice_id_t){2}, &cost);
    *out_has_failed = tow_alloc_has_failed();
    tow_alloc_fail_after(UINT64_MAX);
    assert_int_equal(tow_status_code(status),
                     *out_has_failed ? TOW_RESOURCE_EXHAUSTED : TOW_CODE_OK);
    tow_status_release(status);
    tow_graph_destroy(program);
}

static void without_memory_nothing_leaks(void **state)
{
    (void)state;
    bool has_failed = true;
    for (uint64_t nth = 0; has_failed; nth++)
        without_memory_nothing_leaks_at(nth, &has_failed);
}

/* -- A model of workers ---------------------------------------------------- */

#define WORKERS   (IR_CLUSTER_SLICES - 1)
#define NODES_MAX 128
#define SLOTS_MAX 512

typedef enum phase {
    NOT_STARTED,
    STARTED, /* enqueued */
    RUNNING, /* a computation, on its device */
    ENDED,
} phase_t;

typedef struct model_worker {
    tow_lowered_t *lowered;
    phase_t phases[NODES_MAX];
    size_t next; /* step to be applied */
    bool is_ready[SLOTS_MAX];
    bool has_memory[SLOTS_MAX];
    bool is_dropped[SLOTS_MAX];    /* by the executor */
    uint32_t use_count[SLOTS_MAX]; /* by steps under way */
    uint64_t live, peak;
} model_worker_t;

typedef struct model {
    model_worker_t workers[WORKERS];
    uint64_t sizes[SLOTS_MAX]; /* 0: arguments */
    tow_random_t random;
    uint64_t transfer_odds; /* against one: transfers may be slow */
} model_t;

static bool has_ended(const model_worker_t *worker, uint32_t index)
{
    for (size_t i = 0; i < worker->lowered->step_count; i++)
        if (worker->lowered->steps[i].index == index)
            return worker->phases[i] == ENDED;
    return true;
}

static bool has_sent_all(const model_worker_t *worker, uint32_t index)
{
    for (size_t i = 0; i < worker->next; i++)
        if (worker->lowered->steps[i].sent_before == index + 1 &&
            worker->phases[i] != ENDED)
            return false;
    return true;
}

static bool may_apply(const model_worker_t *worker)
{
    if (worker->next == worker->lowered->step_count) return false;
    const tow_lowered_step_t *step = &worker->lowered->steps[worker->next];
    return (step->memory_after == 0 ||
            has_ended(worker, step->memory_after - 1)) &&
           has_sent_all(worker, step->index);
}

static void take(const model_t *model, model_worker_t *worker, uint32_t slot)
{
    worker->has_memory[slot] = true;
    worker->live += model->sizes[slot];
    if (worker->live > worker->peak) worker->peak = worker->live;
}

static void give(const model_t *model, model_worker_t *worker, uint32_t slot)
{
    if (!worker->has_memory[slot] || !worker->is_dropped[slot] ||
        worker->use_count[slot] > 0)
        return;
    worker->has_memory[slot] = false;
    worker->live -= model->sizes[slot];
}

static void apply(const model_t *model, model_worker_t *worker)
{
    const tow_lowered_step_t *step = &worker->lowered->steps[worker->next];
    worker->phases[worker->next++] = STARTED;
    for (size_t i = 0; i < step->input_count; i++)
        worker->use_count[step->inputs[i]]++;
    for (uint32_t i = 0; i < step->output_count; i++) {
        worker->use_count[step->first_output + i]++;
        if (step->route != NULL) take(model, worker, step->first_output);
    }
    for (size_t i = 0; i < step->freed_count; i++)
        worker->is_dropped[step->freed[i]] = true;
}

static void end(const model_t *model, model_worker_t *worker, size_t at)
{
    const tow_lowered_step_t *step = &worker->lowered->steps[at];
    worker->phases[at] = ENDED;
    for (uint32_t i = 0; i < step->output_count; i++) {
        worker->is_ready[step->first_output + i] = true;
        worker->use_count[step->first_output + i]--;
        give(model, worker, step->first_output + i);
    }
    for (size_t i = 0; i < step->input_count; i++) {
        worker->use_count[step->inputs[i]]--;
        give(model, worker, step->inputs[i]);
    }
}

static bool has_inputs(const model_worker_t *worker,
                       const tow_lowered_step_t *step)
{
    for (size_t i = 0; i < step->input_count; i++)
        if (!worker->is_ready[step->inputs[i]]) return false;
    return true;
}

/* The first computation that has not ended; SIZE_MAX: none is enqueued. */
static size_t first_computation(const model_worker_t *worker)
{
    for (size_t i = 0; i < worker->next; i++)
        if (worker->lowered->steps[i].route == NULL &&
            worker->phases[i] != ENDED)
            return i;
    return SIZE_MAX;
}

static bool compute(const model_t *model, model_worker_t *worker)
{
    const size_t at = first_computation(worker);
    if (at == SIZE_MAX) return false;
    const tow_lowered_step_t *step = &worker->lowered->steps[at];
    if (worker->phases[at] == RUNNING) {
        end(model, worker, at);
        return true;
    }
    if (!has_inputs(worker, step)) return false;
    worker->phases[at] = RUNNING;
    take(model, worker, step->first_output);
    return true;
}

/* Has the worker a part of this transfer that it has not started yet? */
static bool is_behind(const model_worker_t *worker, uint32_t index)
{
    for (size_t i = worker->next; i < worker->lowered->step_count; i++)
        if (worker->lowered->steps[i].index == index) return true;
    return false;
}

static bool can_move(const model_t *model, const model_worker_t *sender,
                     size_t at)
{
    const tow_lowered_step_t *step = &sender->lowered->steps[at];
    if (step->route == NULL || sender->phases[at] != STARTED ||
        step->input_count == 0 || !has_inputs(sender, step))
        return false;
    for (size_t w = 0; w < WORKERS; w++)
        if (is_behind(&model->workers[w], step->index)) return false;
    return true;
}

static void move(model_t *model, uint32_t index)
{
    for (size_t w = 0; w < WORKERS; w++)
        for (size_t i = 0; i < model->workers[w].lowered->step_count; i++)
            if (model->workers[w].lowered->steps[i].index == index)
                end(model, &model->workers[w], i);
}

/* Ends one transfer of the worker; false: none can end. */
static bool transfer(model_t *model, const model_worker_t *sender)
{
    for (size_t i = 0; i < sender->next; i++) {
        if (!can_move(model, sender, i)) continue;
        if (tow_random_below(&model->random, model->transfer_odds) != 0)
            continue;
        move(model, sender->lowered->steps[i].index);
        return true;
    }
    return false;
}

static bool is_done(const model_t *model)
{
    for (size_t w = 0; w < WORKERS; w++)
        for (size_t i = 0; i < model->workers[w].lowered->step_count; i++)
            if (model->workers[w].phases[i] != ENDED) return false;
    return true;
}

/* Devices are slow, so that workers run ahead. Fails if nothing can happen. */
static void run_model(model_t *model)
{
    for (int idle = 0; !is_done(model);) {
        model_worker_t *worker =
            &model->workers[tow_random_below(&model->random, WORKERS)];
        bool has_acted = false;
        switch (tow_random_below(&model->random, 8)) {
        case 0: has_acted = compute(model, worker); break;
        case 1:
        case 2: has_acted = transfer(model, worker); break;
        default:
            has_acted = may_apply(worker);
            if (has_acted) apply(model, worker);
            break;
        }
        idle = has_acted ? 0 : idle + 1;
        assert_true(idle < 10000); /* a deadlock */
    }
}

/* Big and small values on all slices; each has users on its own and on other
 * slices. */
static void write_random(text_t *text, tow_random_t *random, const char *big,
                         int node_count)
{
    bool is_big[NODES_MAX];
    *text = (text_t){.size = 0};
    add(text, "program { %%0 = argument : %s on slice 1 ", big);
    is_big[0] = true;
    for (int i = 1; i < node_count; i++) {
        const int nearby = i < 12 ? i : 12;
        const int a = i - 1 - (int)tow_random_below(random, (uint64_t)nearby);
        const int b = (int)tow_random_below(random, (uint64_t)i);
        const int slice = 1 + (int)tow_random_below(random, WORKERS);
        int function = is_big[a] ? 1 : 4;
        if (is_big[a] && tow_random_below(random, 6) == 0) function = 3;
        if (is_big[a] && is_big[b] && tow_random_below(random, 3) == 0)
            function = 2;
        add(text, "%%%d = compute function %d on slice %d (%%%d", i, function,
            slice, a);
        add(text, function == 2 ? ", %%%d) " : ") ", b);
        is_big[i] = function != 3;
    }
    add(text, "%%%d = result (%%%d) }", node_count, node_count - 1);
}

static void size_slots(model_t *model, const ir_cluster_t *cluster,
                       const tow_lowered_t *lowered)
{
    for (size_t i = 0; i < lowered->step_count; i++) {
        const tow_lowered_step_t *step = &lowered->steps[i];
        const uint64_t number = step->executable.value % 1000;
        uint64_t bytes = 0;
        if (step->route != NULL)
            must(tow_shape_bytes(&step->route->target, &bytes));
        else
            bytes = cluster->functions[number].signature.results[0].bytes;
        if (step->output_count > 0) model->sizes[step->first_output] = bytes;
    }
}

static void check_random(uint64_t seed)
{
    static ir_cluster_t cluster;
    static text_t text;
    static model_t model;
    const char *big = seed % 2 == 0 ? BIG : HUGE_VALUE;
    open_cluster(&cluster, big);
    memset(&model, 0, sizeof(model));
    tow_random_init(&model.random, seed);
    model.transfer_odds = seed % 3 == 0 ? 50 : 2;
    if (seed % 4 == 0)
        write_values(&text, seed % 8 == 0 ? IN_TURN : REVERSED, 1, 3);
    else
        write_random(&text, &model.random, big,
                     2 + (int)tow_random_below(&model.random, 60));
    tow_graph_t *program = ir_cluster_insert(&cluster, text.bytes);
    for (uint32_t w = 0; w < WORKERS; w++) {
        model_worker_t *worker = &model.workers[w];
        worker->lowered = ir_cluster_lower(&cluster, program, w + 1);
        assert_true(worker->lowered->slot_count <= SLOTS_MAX);
        worker->is_ready[0] = true; /* the argument */
        size_slots(&model, &cluster, worker->lowered);
    }
    run_model(&model);
    for (uint32_t w = 0; w < WORKERS; w++) {
        const uint64_t counted = peak_of(&cluster, program, w + 1);
        if (model.workers[w].peak > counted)
            fail_msg("seed %llu: slice %u holds %llu bytes, and %llu are "
                     "counted",
                     (unsigned long long)seed, w + 1,
                     (unsigned long long)model.workers[w].peak,
                     (unsigned long long)counted);
        tow_lowered_destroy(model.workers[w].lowered);
    }
    tow_graph_destroy(program);
}

static void workers_hold_no_more_than_is_counted_and_never_deadlock(
    void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 1000; seed++)
        check_random(seed);
}

TOW_TEST_MAIN(
    cmocka_unit_test(few_of_many_values_are_held_at_once),
    cmocka_unit_test(small_values_are_not_late),
    cmocka_unit_test(a_late_transfer_comes_before_its_first_user),
    cmocka_unit_test(later_computations_wait_until_values_were_sent),
    cmocka_unit_test(a_transfer_of_a_donated_value_is_not_late),
    cmocka_unit_test(without_memory_nothing_leaks),
    cmocka_unit_test(workers_hold_no_more_than_is_counted_and_never_deadlock))
