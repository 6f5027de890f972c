/* Transfers, from the verifier to the lowered programs of workers, which
 * together implement the program. */
#include "ir/cluster_testing_impl.h"
#include "wire/message.h"

/* Slice 1 on processes 10 and 11, slice 2 on 20 and 21, two devices each; slice
 * 3 is one device of process 10. */
static ir_cluster_t *open_stage(void)
{
    static ir_cluster_t cluster;
    ir_cluster_init(&cluster);
    ir_cluster_open_slice(&cluster, 1, 4, 10, 2);
    ir_cluster_open_slice(&cluster, 2, 4, 20, 2);
    ir_cluster_open_slice(&cluster, 3, 1, 10, 1);
    ir_cluster_define(&cluster, 1, 4, "f32[8,2] as 1x4 -> f32[8,2] as 1x4");
    ir_cluster_define(&cluster, 2, 4, "f32[2,8] as 4x1 -> f32[2,8] as 4x1");
    ir_cluster_define(&cluster, 3, 1, "f32[8,8] -> f32[8,8]");
    ir_cluster_define(&cluster, 4, 4,
                      "f32[8,2] as 1x4, f32[8,2] as 1x4 -> f32[8,2] as 1x4");
    return &cluster;
}

#define X "%0 = argument \"x\" : f32[8,2] on slice 1 as 1x4 "

/* -- The verifier ---------------------------------------------------------- */

static void refuses(const char *text, const char *message)
{
    ir_cluster_t *cluster = open_stage();
    tow_graph_t *program = ir_program_of(text);
    must_fail(tow_graph_verify(program, &cluster->scope.program),
              TOW_INVALID_ARGUMENT, message);
    tow_graph_destroy(program);
}

static void shardings_that_do_not_fit_are_refused(void **state)
{
    (void)state;
    refuses("program {" X "%1 = transfer \"T\" from 1x4 to slice 2 as 1x2 (%0)"
            "%2 = result (%1) }",
            "node 1 \"T\": sharding 1x2 is not for 4 devices: its parts and "
            "replicas must multiply to that");
    refuses("program {" X "%1 = transfer \"T\" from 1x2 to slice 2 as 1x4 (%0)"
            "%2 = result (%1) }",
            "node 1 \"T\": input 0, of node 0 \"x\": sharding 1x2 is not for 4 "
            "devices: its parts and replicas must multiply to that");
    refuses("program {" X "%1 = transfer \"T\" from 4x1 to slice 2 as 1x4 (%0)"
            "%2 = result (%1) }",
            "node 1 \"T\": input 0, of node 0 \"x\": its sharding is 1x4, but "
            "4x1 is expected; insert a transfer");
    refuses("program { %0 = argument \"x\" : f32[3] on slice 1 as 4 "
            "%1 = transfer \"T\" from 4 to slice 2 as 2x2 (%0) %2 = result "
            "(%1) }",
            "node 1 \"T\": sharding 2x2 is of rank 2, and f32[12] of rank 1");
    refuses("program { %0 = argument \"x\" : f32[3,3] on slice 1 as 4x1 "
            "%1 = transfer \"T\" from 4x1 to slice 2 as 1x4 (%0) %2 = result "
            "(%1) }",
            "node 1 \"T\": sharding 1x4 does not divide dimension 1 of "
            "f32[12,3]");
    refuses(
        "program {" X "%1 = transfer \"T\" from ? to slice 2 as 1x4 (%0)"
        "%2 = result (%1) }",
        "node 1 \"T\": input 0, of node 0 \"x\": the sharding is not known");
    refuses("program { %0 = argument \"x\" : f32[8,2] on slice 1 as 4 "
            "%1 = result (%0) }",
            "node 0 \"x\": sharding 4 is of rank 1, and f32[8,2] of rank 2");
}

static void transfers_that_cannot_be_are_refused(void **state)
{
    (void)state;
    refuses("program {" X "%1 = transfer \"T\" from 1x4 to slice 9 as 1x4 (%0)"
            "%2 = result (%1) }",
            "node 1 \"T\": there is no slice 9; it was never opened, or is "
            "closed");
    refuses("program {" X "%1 = transfer \"T\" from 1x4 to slice 2 as 1x4 ()"
            "%2 = result (%1) }",
            "node 1 \"T\": a transfer is of one value, not 0");
    refuses("program {" X "%1 = transfer \"T\" from 1x4 to slice 2 as 1x4 (%0)"
            "%2 = result (%1:1) }",
            "node 2: input 0 is output 1 of node 1 \"T\", which has 1");
    refuses("program { %0 = transfer \"T\" from 1x4 to slice 2 as 1x4 (%1)"
            "%1 = transfer \"U\" from 1x4 to slice 2 as 1x4 (%0)"
            "%2 = result (%1) }",
            "node 0 \"T\" depends on itself, in a cycle of 2: node 0 \"T\" -> "
            "node 1 \"U\" -> node 0 \"T\"");
    /* Its shape on slice 2 differs from the function's. */
    refuses("program {" X "%1 = transfer from 1x4 to slice 2 as 4x1 (%0)"
            "%2 = compute \"B\" function 1 on slice 2 (%1) %3 = result (%2) }",
            "node 2 \"B\": input 0, of node 1: it is f32[2,8], but function f1 "
            "takes f32[8,2]");
}

static void chains_of_transfers_are_bounded(void **state)
{
    (void)state;
    ir_cluster_t *cluster = open_stage();
    tow_graph_t *program = ir_program_of("program {" X "}");
    tow_value_t last = {0, 0};
    for (uint32_t i = 0; i <= TOW_TRANSFER_CHAIN_MAX; i++) {
        const tow_sharding_t sharding = sharding_of("1x4");
        const tow_node_t transfer = {.kind = TOW_NODE_TRANSFER,
                                     .slice = {i % 2 == 0 ? 2 : 1},
                                     .from = &sharding,
                                     .to = &sharding,
                                     .inputs = &last,
                                     .input_count = 1};
        const tow_node_t result = {
            .kind = TOW_NODE_RESULT, .inputs = &last, .input_count = 1};
        if (i == TOW_TRANSFER_CHAIN_MAX) {
            must(tow_graph_add(program, &result, NULL));
            must(tow_graph_verify(program, &cluster->scope.program));
        }
        must(tow_graph_add(program, &transfer, &last.node));
    }
    must_fail(tow_graph_verify(program, &cluster->scope.program),
              TOW_INVALID_ARGUMENT,
              "node 18: it follows more than 15 transfers or collectives in a "
              "chain; move an earlier value");
    tow_graph_destroy(program);
}

/* -- Steps ----------------------------------------------------------------- */

static void say_step(char *text, size_t size, const tow_lowered_step_t *step)
{
    size_t used = strlen(text);
    used += (size_t)snprintf(text + used, size - used, "%s%u#%u",
                             used > 0 ? "; " : "", step->node, step->index);
    if (step->input_count > 0)
        used +=
            (size_t)snprintf(text + used, size - used, "(%u)", step->inputs[0]);
    used += (size_t)snprintf(text + used, size - used, "->%u+%u",
                             step->first_output, step->output_count);
    if (step->freed_count > 0)
        used += (size_t)snprintf(text + used, size - used, " frees %u",
                                 step->freed[0]);
    if (step->route != NULL)
        snprintf(text + used, size - used, " sends %zu receives %zu",
                 step->route->send_count, step->route->receive_count);
}

static void lowers_to(const tow_graph_t *program, ir_cluster_t *cluster,
                      uint32_t process, const char *wanted)
{
    char text[1024] = "";
    tow_lowered_t *lowered = ir_cluster_lower(cluster, program, process);
    for (size_t i = 0; i < lowered->step_count; i++)
        say_step(text, sizeof(text), &lowered->steps[i]);
    assert_string_equal(text, wanted);
    tow_lowered_destroy(lowered);
}

static void both_ends_get_the_step_with_their_own_slots(void **state)
{
    (void)state;
    ir_cluster_t *cluster = open_stage();
    tow_graph_t *program = ir_cluster_insert(
        cluster, "program {" X "%1 = compute function 1 on slice 1 (%0)"
                 "%2 = compute function 1 on slice 2 (%1)"
                 "%3 = compute function 2 on slice 2 (%2)"
                 "%4 = result (%3) }");
    /* Slots: x 0, A 1, transfer 2, B 3, transfer 4, C 5. */
    lowers_to(program, cluster, 10,
              "1#0(0)->1+1; 1#1(1)->2+0 frees 1 sends 2 receives 0");
    lowers_to(program, cluster, 20,
              "1#1->2+1 sends 0 receives 2; 2#2(2)->3+1 frees 2; "
              "2#3(3)->4+1 frees 3 sends 8 receives 8; 3#4(4)->5+1 frees 4");
    lowers_to(program, cluster, 99, "");
    tow_graph_destroy(program);
}

/* The nearest replica sends, but each worker frees its own shards. */
static void a_worker_that_sends_nothing_still_frees(void **state)
{
    (void)state;
    ir_cluster_t *cluster = open_stage();
    ir_cluster_define(cluster, 5, 4, "f32[8,2] as 1x4 -> f32[8,8] as 1x1*4");
    tow_graph_t *program = ir_cluster_insert(
        cluster, "program {" X "%1 = compute function 5 on slice 1 (%0)"
                 "%2 = compute function 3 on slice 3 (%1)"
                 "%3 = result (%2) }");
    lowers_to(program, cluster, 10,
              "1#0(0)->1+1; 1#1(1)->2+1 frees 1 sends 1 receives 1; "
              "2#2(2)->3+1 frees 2");
    lowers_to(program, cluster, 11,
              "1#0(0)->1+1; 1#1(1)->2+0 frees 1 sends 0 receives 0");
    tow_graph_destroy(program);
}

/* Transfers come as soon as they can, so that the computations of each slice
 * run in the order that the client gave them: here F1, B1, F2, and not F1, F2,
 * B1. */
static void computations_keep_the_clients_order(void **state)
{
    (void)state;
    ir_cluster_t *cluster = open_stage();
    tow_graph_t *program = ir_cluster_insert(
        cluster, "program {" X "%1 = compute \"F1\" function 1 on slice 1 (%0)"
                 "%2 = compute \"G1\" function 1 on slice 2 (%1)"
                 "%3 = compute \"B1\" function 1 on slice 1 (%2)"
                 "%4 = compute \"F2\" function 1 on slice 1 (%0)"
                 "%5 = compute \"G2\" function 1 on slice 2 (%4)"
                 "%6 = result (%3) %7 = result (%5) }");
    lowers_to(program, cluster, 10,
              "1#0(0)->1+1; 1#1(1)->2+0 frees 1 sends 2 receives 0; "
              "2#3->4+1 sends 0 receives 2; 3#4(4)->5+1 frees 4; "
              "4#5(0)->6+1; 4#6(6)->7+0 frees 6 sends 2 receives 0");
    tow_graph_destroy(program);
}

/* A transfer reads its argument and does not consume it, even if donated. */
static void a_transfer_consumes_nothing(void **state)
{
    (void)state;
    ir_cluster_t *cluster = open_stage();
    bool consumed = true;
    tow_graph_t *program = ir_cluster_insert(
        cluster, "program { %0 = argument : f32[8,2] on slice 1 as 1x4 donated "
                 "%1 = compute function 1 on slice 2 (%0) %2 = result (%1) }");
    must(tow_graph_consumed(program, &cluster->scope.program, &consumed));
    assert_false(consumed);
    lowers_to(program, cluster, 10, "0#0(0)->1+0 sends 2 receives 0");
    tow_graph_destroy(program);
}

/* -- Costs ----------------------------------------------------------------- */

static void costs(const tow_graph_t *program, const ir_cluster_t *cluster,
                  uint64_t slice, tow_graph_cost_t wanted)
{
    tow_graph_cost_t cost;
    must(tow_graph_cost(program, &cluster->scope.program,
                        (tow_slice_id_t){slice}, &cost));
    assert_int_equal(cost.peak_bytes, wanted.peak_bytes);
    assert_int_equal(cost.result_bytes, wanted.result_bytes);
    assert_int_equal(cost.donated_bytes, wanted.donated_bytes);
    assert_int_equal(cost.step_count, wanted.step_count);
}

/* A shard has 64 bytes everywhere. */
static void a_transfer_is_paid_for_where_it_arrives(void **state)
{
    (void)state;
    ir_cluster_t *cluster = open_stage();
    tow_graph_t *program = ir_cluster_insert(
        cluster, "program {" X "%1 = compute function 1 on slice 1 (%0)"
                 "%2 = compute function 1 on slice 2 (%1)"
                 "%3 = result (%2) }");
    costs(program, cluster, 1, (tow_graph_cost_t){64, 0, 0, 1});
    costs(program, cluster, 2, (tow_graph_cost_t){128, 64, 0, 1});
    tow_graph_destroy(program);
    /* Rows of columns: they arrive packed, beside the output. */
    program = ir_cluster_insert(
        cluster, "program {" X "%1 = transfer from ? to slice 2 as 4x1 (%0)"
                 "%2 = result (%1) }");
    costs(program, cluster, 1, (tow_graph_cost_t){0, 0, 0, 0});
    costs(program, cluster, 2, (tow_graph_cost_t){128, 64, 0, 0});
    tow_result_info_t info;
    must(tow_graph_result_info(program, &cluster->scope.program, 0, &info));
    assert_int_equal(info.bytes, 64);
    assert_int_equal(info.slice.value, 2);
    assert_int_equal(info.argument, UINT32_MAX);
    const tow_shape_t wanted = shape_of("f32[2,8]");
    assert_true(tow_shape_equal(&info.shape, &wanted));
    tow_graph_destroy(program);
}

/* -- All workers together -------------------------------------------------- */

#define PROCESSES_MAX 12
#define NODES_MAX     24

/* f32[12,12] cut in some ways, for as many devices as a slice has. */
typedef struct cut {
    const char *shape;
    const char *sharding;
} cut_t;

static const cut_t cuts_of_one[] = {{"f32[12,12]", "1x1"}};
static const cut_t cuts_of_four[] = {
    {"f32[3,12]", "4x1"},    {"f32[12,3]", "1x4"},
    {"f32[6,6]", "2x2"},     {"f32[6,6]", "2x2 mesh 2x2 axes 1,0"},
    {"f32[12,12]", "1x1*4"}, {"f32[6,12]", "2x1*2"}};
static const cut_t cuts_of_six[] = {{"f32[2,12]", "6x1"},
                                    {"f32[4,6]", "3x2"},
                                    {"f32[12,4]", "1x3*2 mesh 2x3 axes 1,0"}};

/* Three slices on a few processes, and functions that give any cut from any. */
static void random_stage(ir_cluster_t *cluster, tow_random_t *random)
{
    static const size_t counts[] = {1, 4, 6};
    ir_cluster_init(cluster);
    const size_t processes = 1 + tow_random_below(random, PROCESSES_MAX);
    for (uint64_t slice = 1; slice <= 3; slice++) {
        ir_cluster_slice_t *it = &cluster->slices[slice];
        uint32_t used[PROCESSES_MAX] = {0};
        it->count = counts[slice - 1];
        for (size_t i = 0; i < it->count; i++) {
            const uint32_t process =
                (uint32_t)tow_random_below(random, processes);
            const uint32_t index = used[process]++;
            it->places[i] = (tow_place_t){process, index, index, process / 2};
        }
    }
    const cut_t *const cuts[] = {cuts_of_one, cuts_of_four, cuts_of_six};
    const size_t cut_counts[] = {TOW_COUNT_OF(cuts_of_one),
                                 TOW_COUNT_OF(cuts_of_four),
                                 TOW_COUNT_OF(cuts_of_six)};
    for (uint64_t number = 1; number <= 9; number++) {
        const size_t kind = (number - 1) % 3;
        const cut_t *a =
            &cuts[kind][tow_random_below(random, cut_counts[kind])];
        const cut_t *b =
            &cuts[kind][tow_random_below(random, cut_counts[kind])];
        char text[256];
        snprintf(text, sizeof(text), "%s as %s -> %s as %s", a->shape,
                 a->sharding, b->shape, b->sharding);
        ir_cluster_define(cluster, number, counts[kind], text);
    }
}

static tow_graph_t *random_staged(ir_cluster_t *cluster, tow_random_t *random)
{
    char text[4096];
    size_t used =
        (size_t)snprintf(text, sizeof(text),
                         "program { %%0 = argument : f32[12,12] on slice 1 ");
    uint32_t count = 1;
    for (; count < 2 + tow_random_below(random, NODES_MAX - 4); count++) {
        const uint64_t function = 1 + tow_random_below(random, 9);
        used += (size_t)snprintf(
            text + used, sizeof(text) - used,
            "%%%u = compute function %u on slice %u (%%%u) ", count,
            (unsigned)function, (unsigned)((function - 1) % 3 + 1),
            (unsigned)tow_random_below(random, count));
    }
    snprintf(text + used, sizeof(text) - used,
             "%%%u = result (%%%u) %%%u = result (%%%u) }", count, count - 1,
             count + 1, (unsigned)tow_random_below(random, count));
    return ir_cluster_insert(cluster, text);
}

static const tow_lowered_step_t *step_of(const tow_lowered_t *lowered,
                                         uint32_t index)
{
    for (size_t i = 0; i < lowered->step_count; i++)
        if (lowered->steps[i].index == index) return &lowered->steps[i];
    return NULL;
}

/* What one sends the other receives. */
static void assert_received(tow_lowered_t *const *all, uint32_t process,
                            uint32_t index, const tow_piece_t *sent)
{
    const tow_lowered_step_t *step = step_of(all[sent->process], index);
    assert_non_null(step);
    for (size_t i = 0; i < step->route->receive_count; i++) {
        tow_piece_t other = step->route->receives[i];
        if (other.process != process || other.number != sent->number ||
            other.target_shard != sent->target_shard)
            continue;
        other.process = sent->process;
        assert_memory_equal(&other, sent, sizeof(other));
        return;
    }
    fail_msg("nobody waits for a piece");
}

static void assert_routes_match(tow_lowered_t *const *all, uint32_t index)
{
    size_t sent = 0, received = 0;
    for (uint32_t process = 0; process < PROCESSES_MAX; process++) {
        const tow_lowered_step_t *step = step_of(all[process], index);
        if (step == NULL || step->route == NULL) continue;
        sent += step->route->send_count;
        received += step->route->receive_count;
        for (size_t i = 0; i < step->route->send_count; i++)
            assert_received(all, process, index, &step->route->sends[i]);
    }
    assert_int_equal(sent, received);
}

/* On every worker, all values except results and arguments are freed at the
 * end. Unpacking checks that values exist when used. */
static void assert_all_goes(const tow_lowered_t *lowered)
{
    bool is_there[4096] = {false};
    assert_true(lowered->slot_count <= TOW_COUNT_OF(is_there));
    for (size_t i = 0; i < lowered->step_count; i++) {
        const tow_lowered_step_t *step = &lowered->steps[i];
        for (uint32_t k = 0; k < step->output_count; k++)
            is_there[step->first_output + k] = true;
        for (size_t k = 0; k < step->freed_count; k++)
            is_there[step->freed[k]] = false;
    }
    for (size_t i = 0; i < lowered->result_count; i++)
        is_there[lowered->results[i]] = false;
    for (uint32_t i = 0; i < lowered->slot_count; i++)
        assert_false(is_there[i]);
}

static tow_lowered_t *pack_and_unpack(tow_lowered_t *lowered)
{
    void *bytes, *bytes_again;
    size_t size, size_again;
    tow_lowered_t *again;
    must(tow_lowered_pack(lowered, &bytes, &size));
    must(tow_lowered_unpack(bytes, size, &again));
    must(tow_lowered_pack(again, &bytes_again, &size_again));
    assert_int_equal(size, size_again);
    assert_memory_equal(bytes, bytes_again, size);
    tow_free(bytes);
    tow_free(bytes_again);
    tow_lowered_destroy(lowered);
    return again;
}

static void workers_agree_in_random_programs(void **state)
{
    (void)state;
    static ir_cluster_t cluster;
    for (uint64_t seed = 0; seed < 300; seed++) {
        tow_random_t random;
        tow_random_init(&random, seed);
        tow_lowered_t *all[PROCESSES_MAX];
        random_stage(&cluster, &random);
        tow_graph_t *program = random_staged(&cluster, &random);
        for (uint32_t process = 0; process < PROCESSES_MAX; process++) {
            all[process] =
                pack_and_unpack(ir_cluster_lower(&cluster, program, process));
            assert_all_goes(all[process]);
        }
        for (uint32_t index = 0; index < all[0]->step_count_all; index++)
            assert_routes_match(all, index);
        for (uint32_t process = 0; process < PROCESSES_MAX; process++)
            tow_lowered_destroy(all[process]);
        tow_graph_destroy(program);
    }
}

/* -- Size ------------------------------------------------------------------ */

/* A on N devices of slice 1, B on N others: as many bytes for each worker,
 * whatever N is. Numbers of processes take two bytes each. */
static void a_worker_gets_as_much_for_2048_devices_as_for_one(void **state)
{
    (void)state;
    static ir_cluster_t cluster;
    for (uint32_t each = 1; each <= 4; each *= 4) {
        size_t sizes[2] = {0}, graph_size = 0;
        for (size_t count = each; count <= IR_CLUSTER_DEVICES; count *= 2) {
            const uint32_t hosts = (uint32_t)(count / each);
            char text[128];
            ir_cluster_init(&cluster);
            ir_cluster_open_slice(&cluster, 1, count, 1000, each);
            ir_cluster_open_slice(&cluster, 2, count, 4000, each);
            snprintf(text, sizeof(text), "f32[4] as %zu -> f32[4] as %zu",
                     count, count);
            ir_cluster_define(&cluster, 1, count, text);
            tow_graph_t *program = ir_cluster_insert(
                &cluster, "program { %0 = argument : f32[4] on slice 1 "
                          "%1 = compute \"A\" function 1 on slice 1 (%0)"
                          "%2 = compute \"B\" function 1 on slice 2 (%1)"
                          "%3 = result (%2) }");
            assert_int_equal(tow_graph_node_count(program), 5);
            void *bytes;
            size_t size;
            must(tow_graph_pack(program, &bytes, &size));
            tow_free(bytes);
            /* But for how the number of parts is written. */
            if (graph_size == 0) graph_size = size;
            assert_in_range(size, graph_size, graph_size + 4);
            const uint32_t ends[] = {1000, 1000 + hosts - 1, 4000,
                                     4000 + hosts / 2};
            for (size_t i = 0; i < TOW_COUNT_OF(ends); i++) {
                tow_lowered_t *lowered =
                    ir_cluster_lower(&cluster, program, ends[i]);
                must(tow_lowered_pack(lowered, &bytes, &size));
                if (sizes[i / 2] == 0) sizes[i / 2] = size;
                assert_int_equal(size, sizes[i / 2]);
                assert_in_range(size, 1, 60 + 20 * each);
                tow_free(bytes);
                tow_lowered_destroy(lowered);
            }
            tow_graph_destroy(program);
        }
    }
}

/* -- Bytes that are not trusted -------------------------------------------- */

static void spoilt_bytes_are_refused_or_harmless(void **state)
{
    (void)state;
    static ir_cluster_t cluster;
    tow_random_t random;
    tow_random_init(&random, 5);
    for (int i = 0; i < 2000; i++) {
        void *bytes;
        size_t size;
        tow_lowered_t *again;
        random_stage(&cluster, &random);
        tow_graph_t *program = random_staged(&cluster, &random);
        tow_lowered_t *lowered = ir_cluster_lower(&cluster, program, 0);
        must(tow_lowered_pack(lowered, &bytes, &size));
        for (uint64_t k = 0; k < 1 + tow_random_below(&random, 3); k++)
            ((uint8_t *)bytes)[tow_random_below(&random, size)] ^=
                (uint8_t)(1u << tow_random_below(&random, 8));
        tow_status_t status = tow_lowered_unpack(bytes, size, &again);
        assert_true((status == TOW_OK) == (again != NULL));
        tow_status_release(status);
        tow_free(bytes);
        tow_lowered_destroy(again);
        tow_lowered_destroy(lowered);
        tow_graph_destroy(program);
    }
}

/* Two shards f32[2,4] from two of f32[4,2]: four pieces each way, packed. */
typedef struct sample {
    tow_piece_t sends[4], receives[4];
    uint32_t devices[2], input, output;
    tow_route_t route;
    tow_lowered_step_t step;
    tow_lowered_t lowered;
} sample_t;

static void sample_init(sample_t *sample)
{
    *sample = (sample_t){.devices = {0, 1}, .input = 0, .output = 1};
    for (uint32_t i = 0; i < 4; i++)
        sample->sends[i] = sample->receives[i] =
            (tow_piece_t){.process = 7,
                          .source_shard = i % 2,
                          .target_shard = i / 2,
                          .number = i % 2,
                          .bytes = 16,
                          .offset = i % 2 * 16,
                          .source_start = {i / 2 * 2, 0},
                          .target_start = {0, i % 2 * 2},
                          .extent = {2, 2}};
    sample->route = (tow_route_t){.source = shape_of("f32[4,2]"),
                                  .target = shape_of("f32[2,4]"),
                                  .source_count = 2,
                                  .sends = sample->sends,
                                  .send_count = 4,
                                  .receives = sample->receives,
                                  .receive_count = 4,
                                  .target_devices = sample->devices,
                                  .target_count = 2,
                                  .is_packed = true};
    sample->step = (tow_lowered_step_t){.route = &sample->route,
                                        .inputs = &sample->input,
                                        .input_count = 1,
                                        .first_output = 1,
                                        .output_count = 1};
    sample->lowered = (tow_lowered_t){.slot_count = 2,
                                      .argument_count = 1,
                                      .results = &sample->output,
                                      .result_count = 1,
                                      .steps = &sample->step,
                                      .step_count = 1,
                                      .step_count_all = 1};
}

static void sample_is(sample_t *sample, const char *wanted)
{
    void *bytes;
    size_t size;
    tow_lowered_t *again;
    must(tow_lowered_pack(&sample->lowered, &bytes, &size));
    tow_status_t status = tow_lowered_unpack(bytes, size, &again);
    if (wanted == NULL) {
        must(status);
    } else {
        char message[256];
        snprintf(message, sizeof(message),
                 "lowered program: step of node 0: %s", wanted);
        must_fail(status, TOW_INVALID_ARGUMENT, message);
    }
    tow_lowered_destroy(again);
    tow_free(bytes);
    sample_init(sample);
}

static void boxes_outside_of_their_shards_are_refused(void **state)
{
    (void)state;
    sample_t sample;
    sample_init(&sample);
    sample_is(&sample, NULL);
    sample.sends[1].source_start[0] = 3;
    sample_is(&sample, "sends: piece 1: its box is not inside of a shard");
    sample.sends[2].source_start[1] = -1;
    sample_is(&sample, "sends: piece 2: its box is not inside of a shard");
    sample.sends[2].extent[1] = INT64_MAX;
    sample_is(&sample, "sends: piece 2: its box is not inside of a shard");
    sample.receives[3].target_start[1] = 3;
    sample_is(&sample, "receives: piece 3: its box is not inside of a shard");
    sample.receives[0].extent[0] = 0;
    sample_is(&sample, "receives: piece 0: its box is not inside of a shard");
    sample.sends[0].offset = 17;
    sample_is(&sample, "sends: piece 0: it ends behind its target");
    sample.sends[0].offset = UINT64_MAX;
    sample_is(&sample, "sends: piece 0: it ends behind its target");
    sample.route.is_packed = false;
    sample_is(&sample,
              "sends: piece 0: it is not one row of bytes at its offset");
}

static void targets_that_are_not_covered_are_refused(void **state)
{
    (void)state;
    sample_t sample;
    sample_init(&sample);
    sample.route.receive_count = 3;
    sample_is(&sample, "target shard 1 is not covered from byte 16 on");
    sample.receives[1].number = 2;
    sample_is(&sample, "target shard 0 is not covered from byte 16 on");
    sample.receives[1].offset = 0;
    sample_is(&sample, "target shard 0 is not covered from byte 16 on");
    sample.receives[2].target_shard = 0;
    sample_is(&sample, "target shard 1 is not covered from byte 0 on");
    sample.route.target_count = 1;
    sample_is(&sample, "4 pieces are received, and 2 are wanted");
    sample.devices[1] = 0;
    sample_is(&sample, "device 0 is invalid, or has two target shards");
    sample.devices[1] = 256;
    sample_is(&sample, "device 256 is invalid, or has two target shards");
}

static void ends_without_shards_are_refused(void **state)
{
    (void)state;
    sample_t sample;
    sample_init(&sample);
    sample.route.source_count = 1;
    sample_is(&sample, "piece 1 is of shard 1, and the worker has 1");
    sample.step.input_count = 0;
    sample_is(&sample, "2 shards for 0 inputs, 2 for 1 outputs");
    sample.route.target = shape_of("f32[4]");
    sample.route.send_count = sample.route.receive_count = 0;
    sample_is(&sample, "f32[4] cannot be made of f32[4,2]");
}

/* -- Memory ---------------------------------------------------------------- */

static tow_status_t go_through(ir_cluster_t *cluster,
                               const tow_graph_t *program,
                               tow_graph_t **complete, tow_lowered_t **lowered,
                               void **bytes)
{
    size_t size;
    TOW_RETURN_IF_ERROR(
        tow_graph_verify_loose(program, &cluster->scope.program));
    TOW_RETURN_IF_ERROR(
        tow_graph_insert_transfers(program, &cluster->scope.program, complete));
    TOW_RETURN_IF_ERROR(tow_graph_verify(*complete, &cluster->scope.program));
    TOW_RETURN_IF_ERROR(tow_graph_lower(*complete, &cluster->scope, lowered));
    TOW_RETURN_IF_ERROR(tow_lowered_pack(*lowered, bytes, &size));
    return tow_lowered_unpack(*bytes, size, &lowered[1]);
}

static tow_exhaust_result_t go_and_return(void *context)
{
    ir_cluster_t *cluster = context;
    tow_graph_t *complete = NULL;
    tow_lowered_t *lowered[2] = {NULL, NULL};
    void *bytes = NULL;
    tow_graph_t *program = NULL;
    static const char text[] =
        "program {" X "%1 = compute function 5 on slice 1 (%0)"
        "%2 = compute function 2 on slice 2 (%1) %3 = result (%2) }";
    tow_status_t status = tow_graph_parse(text, sizeof(text) - 1, &program);
    if (status == TOW_OK)
        status = go_through(cluster, program, &complete, lowered, &bytes);
    tow_graph_destroy(program);
    tow_graph_destroy(complete);
    tow_lowered_destroy(lowered[0]);
    tow_lowered_destroy(lowered[1]);
    tow_free(bytes);
    if (status == TOW_OK) return TOW_EXHAUST_SUCCEEDED;
    assert_int_equal(tow_status_code(status), TOW_RESOURCE_EXHAUSTED);
    tow_status_release(status);
    return TOW_EXHAUST_FAILED;
}

static void exhausted_memory_is_an_error_at_every_place(void **state)
{
    (void)state;
    ir_cluster_t *cluster = open_stage();
    ir_cluster_define(cluster, 5, 4, "f32[8,2] as 1x4 -> f32[8,8] as 1x1*4");
    cluster->scope.process = 10;
    assert_in_range(tow_test_exhaust(go_and_return, cluster), 20, 300);
}

TOW_TEST_MAIN(
    cmocka_unit_test(shardings_that_do_not_fit_are_refused),
    cmocka_unit_test(transfers_that_cannot_be_are_refused),
    cmocka_unit_test(chains_of_transfers_are_bounded),
    cmocka_unit_test(both_ends_get_the_step_with_their_own_slots),
    cmocka_unit_test(a_worker_that_sends_nothing_still_frees),
    cmocka_unit_test(computations_keep_the_clients_order),
    cmocka_unit_test(a_transfer_consumes_nothing),
    cmocka_unit_test(a_transfer_is_paid_for_where_it_arrives),
    cmocka_unit_test(workers_agree_in_random_programs),
    cmocka_unit_test(a_worker_gets_as_much_for_2048_devices_as_for_one),
    cmocka_unit_test(spoilt_bytes_are_refused_or_harmless),
    cmocka_unit_test(boxes_outside_of_their_shards_are_refused),
    cmocka_unit_test(targets_that_are_not_covered_are_refused),
    cmocka_unit_test(ends_without_shards_are_refused),
    cmocka_unit_test(exhausted_memory_is_an_error_at_every_place))
