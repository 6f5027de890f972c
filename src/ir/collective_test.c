/* Collectives, from text to the lowered programs of workers. */
#include "ir/cluster_testing_impl.h"
#include "wire/message.h"

/* Slice 1: a mesh of 2x4 on processes 10 and 11, a row each; slice 2 one device
 * of process 10. Function 1 makes two values of it that are all-reduced. */
static ir_cluster_t *open_stage(void)
{
    static ir_cluster_t cluster;
    ir_cluster_init(&cluster);
    ir_cluster_open_slice(&cluster, 1, 8, 10, 4);
    ir_cluster_open_slice(&cluster, 2, 1, 10, 1);
    ir_cluster_define(&cluster, 1, 8, "f32[4] as 8 -> f32[4] as 8");
    ir_cluster_define(&cluster, 2, 8, "f32[4] as 1*8 -> f32[4] as 1*8");
    return &cluster;
}

#define X "%0 = argument \"x\" : f32[4] on slice 1 "
#define Y "%1 = argument \"y\" : bf16[2,3] on slice 1 "

static void verifies(const char *text)
{
    ir_cluster_t *cluster = open_stage();
    tow_graph_t *program = ir_program_of(text);
    must(tow_graph_verify(program, &cluster->scope.program));
    tow_graph_destroy(program);
}

static void refuses_with(tow_code_t code, const char *text, const char *message)
{
    ir_cluster_t *cluster = open_stage();
    tow_graph_t *program = ir_program_of(text);
    must_fail(tow_graph_verify(program, &cluster->scope.program), code,
              message);
    tow_graph_destroy(program);
}

static void refuses(const char *text, const char *message)
{
    refuses_with(TOW_INVALID_ARGUMENT, text, message);
}

static void its_outputs_have_the_shapes_of_its_inputs(void **state)
{
    (void)state;
    verifies("program {" X Y "%2 = all_reduce sum on slice 1 (%0, %1)"
             "%3 = compute function 1 on slice 1 (%2) %4 = result (%2:1)"
             "%5 = result (%3) }");
    refuses("program {" X Y "%2 = all_reduce sum on slice 1 (%0, %1)"
            "%3 = compute \"f\" function 1 on slice 1 (%2:1) %4 = result (%3) "
            "}",
            "node 3 \"f\": input 0, of node 2: it is bf16[2,3], but function "
            "f1 takes f32[4]");
    refuses("program {" X "%1 = all_reduce sum on slice 1 (%0)"
            "%2 = result \"r\" (%1:1) }",
            "node 2 \"r\": input 0 is output 1 of node 1, which has 1");
}

static void what_cannot_be_reduced_is_refused(void **state)
{
    (void)state;
    refuses("program { %0 = argument \"c\" : c64[2] on slice 1 "
            "%1 = all_reduce \"R\" max on slice 1 (%0) %2 = result (%1) }",
            "node 1 \"R\": input 0, of node 0 \"c\": there is no max of c64");
    refuses("program { %0 = argument \"c\" : s4[2] on slice 1 "
            "%1 = all_reduce \"R\" sum on slice 1 (%0) %2 = result (%1) }",
            "node 1 \"R\": input 0, of node 0 \"c\": there is no sum of s4");
    refuses("program {" X "%1 = all_reduce #9 on slice 1 (%0) "
            "%2 = result (%1) }",
            "node 1: reduction 9 is not sum, product, min or max");
    refuses_with(TOW_UNIMPLEMENTED,
                 "program {" X "%1 = all_reduce kind 7 sum on slice 1 (%0) "
                 "%2 = result (%1) }",
                 "node 1: collective 7 is not known to this version");
    refuses("program {" X "%1 = all_reduce ? on slice 1 (%0) "
            "%2 = result (%1) }",
            "node 1: it does not say what is done with its values");
    refuses("program {" X "%1 = all_reduce sum on slice 1 () "
            "%2 = result (%0) }",
            "node 1: a collective of no values");
}

static void groups_must_be_of_the_slice(void **state)
{
    (void)state;
    verifies("program {" X "%1 = all_reduce sum on slice 1 over 2x4 axes 1 "
             "(%0) %2 = result (%1) }");
    refuses("program {" X "%1 = all_reduce sum on slice 1 over 2x2 axes 1 "
            "(%0) %2 = result (%1) }",
            "node 1: its mesh is not of the 8 devices of the slice");
    refuses("program {" X "%1 = all_reduce sum on slice 1 over 2x4 "
            "(%0) %2 = result (%1) }",
            "node 1: its groups extend along no axis of the mesh; leave the "
            "mesh out for one group of all devices");
    refuses("program {" X "%1 = all_reduce sum on slice 1 over 2x4 axes 1,1 "
            "(%0) %2 = result (%1) }",
            "node 1: axis 1 of a mesh of rank 2; axes are given once each, "
            "ascending");
    refuses("program {" X "%1 = all_reduce sum on slice 2 (%0) %2 = result "
            "(%1) }",
            "node 1: input 0, of node 0 \"x\": it is on slice 1, but the "
            "collective is on slice 2; move it there by a transfer");
}

static void chains_are_bounded(void **state)
{
    (void)state;
    char text[2048] = "program {" X;
    for (uint32_t i = 1; i <= 17; i++)
        snprintf(text + strlen(text), sizeof(text) - strlen(text),
                 "%%%u = all_reduce sum on slice 1 (%%%u) ", i, i - 1);
    snprintf(text + strlen(text), sizeof(text) - strlen(text),
             "%%18 = result (%%17) }");
    refuses(text, "node 17: it follows more than 15 transfers or collectives "
                  "in a chain; move an earlier value");
}

/* -- Groups ---------------------------------------------------------------- */

static size_t group(const char *over, size_t device)
{
    char text[256];
    snprintf(text, sizeof(text),
             "program { %%0 = all_reduce sum on slice 1 %s () }", over);
    tow_graph_t *program = ir_program_of(text);
    const size_t number =
        tow_collective_group_of(tow_graph_node(program, 0)->collective, device);
    tow_graph_destroy(program);
    return number;
}

static void a_group_extends_along_its_axes(void **state)
{
    (void)state;
    for (size_t device = 0; device < 8; device++) {
        assert_int_equal(group("", device), 0);
        assert_int_equal(group("over 2x4 axes 1", device), device / 4);
        assert_int_equal(group("over 2x4 axes 0", device), device % 4);
        assert_int_equal(group("over 2x4 axes 0,1", device), 0);
        assert_int_equal(group("over 2x2x2 axes 1", device),
                         device / 4 * 2 + device % 2);
    }
}

/* -- Lowering -------------------------------------------------------------- */

static tow_lowered_t *through_bytes(tow_lowered_t *take_lowered)
{
    void *bytes;
    size_t size;
    tow_lowered_t *lowered;
    must(tow_lowered_pack(take_lowered, &bytes, &size));
    tow_lowered_destroy(take_lowered);
    must(tow_lowered_unpack(bytes, size, &lowered));
    tow_free(bytes);
    return lowered;
}

static void a_worker_gets_its_groups_with_all_their_workers(void **state)
{
    (void)state;
    ir_cluster_t *cluster = open_stage();
    tow_graph_t *program = ir_cluster_insert(
        cluster, "program {" X Y
                 "%2 = all_reduce max on slice 1 over 2x4 axes 0 (%1, %0) "
                 "%3 = result (%2:1) }");
    tow_lowered_t *lowered =
        through_bytes(ir_cluster_lower(cluster, program, 11));
    assert_int_equal(lowered->step_count, 1);
    const tow_lowered_step_t *step = &lowered->steps[0];
    assert_int_equal(step->input_count, 2);
    assert_int_equal(step->inputs[0], 1);
    assert_int_equal(step->first_output, 2);
    assert_int_equal(step->output_count, 2);
    /* The first output is unused; the caller owns the inputs. */
    assert_int_equal(step->freed_count, 1);
    assert_int_equal(step->freed[0], 2);
    assert_null(step->route);
    const tow_collective_part_t *part = step->collective;
    assert_int_equal(part->reduction, TOW_REDUCE_MAX);
    assert_int_equal(part->tensor_count, 2);
    assert_int_equal(part->tensors[0].type, TOW_TYPE_BF16);
    assert_int_equal(part->tensors[1].type, TOW_TYPE_F32);
    assert_int_equal(part->shard_count, 4);
    assert_int_equal(part->group_count, 4); /* columns */
    for (uint32_t i = 0; i < 4; i++) {
        const tow_members_t *members = &part->groups[i];
        assert_int_equal(members->group, i);
        assert_int_equal(members->process_count, 2);
        assert_int_equal(members->processes[0], 10);
        assert_int_equal(members->processes[1], 11);
        assert_int_equal(members->self, 1);
        assert_int_equal(members->shard_count, 1);
        assert_int_equal(members->shards[0], i);
    }
    tow_lowered_destroy(lowered);
    tow_graph_destroy(program);
}

static void rows_stay_on_their_worker(void **state)
{
    (void)state;
    ir_cluster_t *cluster = open_stage();
    tow_graph_t *program = ir_cluster_insert(
        cluster, "program {" X "%1 = all_reduce sum on slice 1 over 2x4 axes 1 "
                 "(%0) %2 = result (%1) }");
    tow_lowered_t *lowered =
        through_bytes(ir_cluster_lower(cluster, program, 11));
    const tow_collective_part_t *part = lowered->steps[0].collective;
    assert_int_equal(part->group_count, 1);
    assert_int_equal(part->groups[0].group, 1);
    assert_int_equal(part->groups[0].process_count, 1);
    assert_int_equal(part->groups[0].shard_count, 4);
    tow_lowered_destroy(lowered);
    tow_graph_destroy(program);
}

/* A worker whose shards are not in the order of their groups. */
static void groups_are_ascending_whatever_the_shards(void **state)
{
    (void)state;
    ir_cluster_t *cluster = open_stage();
    ir_cluster_open_slice(cluster, 1, 8, 10, 3); /* 10: 0-2, 11: 3-5, 12: 6-7 */
    tow_graph_t *program = ir_cluster_insert(
        cluster, "program {" X "%1 = all_reduce sum on slice 1 over 2x4 axes 0 "
                 "(%0) %2 = result (%1) }");
    tow_lowered_t *lowered =
        through_bytes(ir_cluster_lower(cluster, program, 11));
    const tow_collective_part_t *part = lowered->steps[0].collective;
    static const uint32_t groups[] = {0, 1, 3}, shards[] = {1, 2, 0},
                          others[] = {10, 10, 12};
    assert_int_equal(part->group_count, 3);
    for (size_t i = 0; i < 3; i++) {
        const tow_members_t *it = &part->groups[i];
        assert_int_equal(it->group, groups[i]);
        assert_int_equal(it->shards[0], shards[i]);
        assert_int_equal(it->processes[1 - it->self], others[i]);
    }
    tow_lowered_destroy(lowered);
    tow_graph_destroy(program);
}

static void the_program_is_as_large_for_any_slice(void **state)
{
    (void)state;
    tow_graph_t *program =
        ir_program_of("program {" X "%1 = all_reduce sum on slice 1 over 4x512 "
                      "axes 1 (%0) %2 = result (%1) }");
    void *bytes;
    size_t size;
    must(tow_graph_pack(program, &bytes, &size));
    assert_true(size < 80);
    tow_free(bytes);
    tow_graph_destroy(program);
}

static void a_part_that_lies_is_refused(void **state)
{
    (void)state;
    ir_cluster_t *cluster = open_stage();
    tow_graph_t *program = ir_cluster_insert(
        cluster, "program {" X "%1 = all_reduce sum on slice 1 (%0) "
                 "%2 = result (%1) }");
    tow_lowered_t *lowered = ir_cluster_lower(cluster, program, 10);
    tow_lowered_step_t *step = (tow_lowered_step_t *)&lowered->steps[0];
    const tow_collective_part_t right = *step->collective;
    const tow_members_t members = right.groups[0];
    static const uint32_t twice[] = {10, 10}, shards[] = {0, 2, 1, 3};
    for (size_t i = 0; i < 6; i++) {
        tow_collective_part_t part = right;
        tow_members_t group = members;
        const char *message = NULL;
        switch (i) {
        case 0:
            group.self = 2;
            message = "group 0: the worker is member 2 of 2";
            break;
        case 1:
            group.processes = twice;
            message = "group 0: process 10 is a member twice";
            break;
        case 2:
            group.shards = shards;
            message = "group 0: shard 1 of 4; each is in one group, ascending";
            break;
        case 3:
            group.shard_count = 3;
            message = "3 of the worker's 4 shards are in a group";
            break;
        case 4:
            part.chunk_bytes = 100;
            message = "chunks of 100 bytes; they are multiples of 64";
            break;
        default:
            part.reduction = (tow_reduction_t)5;
            message = "tensor 0: there is no reduction 5 of f32";
        }
        char wanted[256];
        void *bytes;
        size_t size;
        tow_lowered_t *none;
        part.groups = &group;
        step->collective = &part;
        snprintf(wanted, sizeof(wanted), "lowered program: step of node 1: %s",
                 message);
        must(tow_lowered_pack(lowered, &bytes, &size));
        must_fail(tow_lowered_unpack(bytes, size, &none), TOW_INVALID_ARGUMENT,
                  wanted);
        tow_free(bytes);
    }
    tow_lowered_destroy(lowered);
    tow_graph_destroy(program);
}

static void it_takes_its_outputs_and_as_much_again(void **state)
{
    (void)state;
    ir_cluster_t *cluster = open_stage();
    tow_graph_t *program = ir_cluster_insert(
        cluster, "program {" X Y "%2 = all_reduce sum on slice 1 (%0, %1) "
                 "%3 = result (%2) }");
    tow_graph_cost_t cost;
    must(tow_graph_cost(program, &cluster->scope.program, (tow_slice_id_t){1},
                        &cost));
    assert_int_equal(cost.peak_bytes, 2 * (16 + 12));
    assert_int_equal(cost.result_bytes, 16);
    tow_result_info_t info;
    must(tow_graph_result_info(program, &cluster->scope.program, 0, &info));
    assert_int_equal(info.bytes, 16);
    tow_graph_destroy(program);
}

/* On its slice a user expects any sharding; another slice needs a known one. */
static void how_it_lies_is_the_business_of_its_users(void **state)
{
    (void)state;
    ir_cluster_t *cluster = open_stage();
    tow_graph_t *program = ir_cluster_insert(
        cluster, "program {" X "%1 = all_reduce sum on slice 1 (%0) "
                 "%2 = compute function 1 on slice 1 (%1) "
                 "%3 = compute function 2 on slice 1 (%1) "
                 "%4 = transfer from 1*8 to slice 2 as 1 (%1) "
                 "%5 = result (%2) %6 = result (%3) }");
    assert_int_equal(tow_graph_node_count(program), 7); /* none inserted */
    tow_graph_destroy(program);
}

TOW_TEST_MAIN(cmocka_unit_test(its_outputs_have_the_shapes_of_its_inputs),
              cmocka_unit_test(what_cannot_be_reduced_is_refused),
              cmocka_unit_test(groups_must_be_of_the_slice),
              cmocka_unit_test(chains_are_bounded),
              cmocka_unit_test(a_group_extends_along_its_axes),
              cmocka_unit_test(a_worker_gets_its_groups_with_all_their_workers),
              cmocka_unit_test(rows_stay_on_their_worker),
              cmocka_unit_test(groups_are_ascending_whatever_the_shards),
              cmocka_unit_test(the_program_is_as_large_for_any_slice),
              cmocka_unit_test(a_part_that_lies_is_refused),
              cmocka_unit_test(it_takes_its_outputs_and_as_much_again),
              cmocka_unit_test(how_it_lies_is_the_business_of_its_users))
