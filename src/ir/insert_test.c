/* Transfers are inserted where a value is used on another slice, or with
 * another sharding, than it has; and nowhere else. */
#include "ir/cluster_testing_impl.h"

/* Slices 1 and 2 of four devices, slice 3 of one. Functions 1 and 2 take and
 * give columns and rows of f32[8,8], function 3 of slice 3 all of it; 4 does
 * not say; 5 cannot. */
static ir_cluster_t *open_stage(void)
{
    static ir_cluster_t cluster;
    ir_cluster_init(&cluster);
    ir_cluster_open_slice(&cluster, 1, 4, 10, 2);
    ir_cluster_open_slice(&cluster, 2, 4, 20, 2);
    ir_cluster_open_slice(&cluster, 3, 1, 30, 1);
    ir_cluster_define(&cluster, 1, 4, "f32[8,2] as 1x4 -> f32[8,2] as 1x4");
    ir_cluster_define(&cluster, 2, 4, "f32[2,8] as 4x1 -> f32[2,8] as 4x1");
    ir_cluster_define(&cluster, 3, 1, "f32[8,8] -> f32[8,8]");
    ir_cluster_define(&cluster, 4, 4, "f32[8,2] -> f32[8,2]");
    ir_cluster_define(&cluster, 5, 4, "f32[8,2] as 1x4 -> f32[8,2] as 1x4");
    cluster.functions[5].arrays[0].sharding = (tow_bytes_t){"\x08\x04", 2};
    ir_cluster_define(&cluster, 6, 4, "f32[4,4] as 2x2 -> f32[4,4] as 2x2");
    ir_cluster_define(&cluster, 7, 4,
                      "f32[8,2] as 1x4, f32[2,8] as 4x1 -> f32[8,8] as 1x1*4");
    ir_cluster_define(&cluster, 8, 4, "f32[8,4] as 1x4 -> f32[8,2] as 1x4");
    ir_cluster_define(&cluster, 9, 4,
                      "f32[8,2] as 1x4 mesh 4 axes 0 -> f32[8,2] as 1x4");
    ir_cluster_define(&cluster, 10, 4, " -> f32[]");
    ir_cluster_define(&cluster, 11, 4, "f32[] -> f32[]");
    return &cluster;
}

static void becomes(const char *text, const char *wanted)
{
    char *printed;
    tow_graph_t *program = ir_cluster_insert(open_stage(), text);
    must(tow_graph_print(program, &printed));
    assert_string_equal(printed, wanted);
    tow_free(printed);
    tow_graph_destroy(program);
}

static void refuses_with(tow_code_t code, const char *text, const char *message)
{
    ir_cluster_t *cluster = open_stage();
    tow_graph_t *complete;
    tow_graph_t *program = ir_program_of(text);
    must(tow_graph_verify_loose(program, &cluster->scope.program));
    must_fail(
        tow_graph_insert_transfers(program, &cluster->scope.program, &complete),
        code, message);
    assert_null(complete);
    tow_graph_destroy(program);
}

static void refuses(const char *text, const char *message)
{
    refuses_with(TOW_INVALID_ARGUMENT, text, message);
}

#define X "  %0 = argument \"x\" : f32[8,2] on slice 1\n"
#define A "  %1 = compute \"A\" function 1 on slice 1 (%0)\n"

static void values_that_are_where_they_are_used_stay(void **state)
{
    (void)state;
    static const char same[] =
        "program {\n" X A "  %2 = compute function 1 on slice 1 (%1)\n"
        "  %3 = compute function 4 on slice 1 (%2)\n"
        "  %4 = compute function 9 on slice 1 (%1)\n"
        "  %5 = result (%3)\n"
        "  %6 = result (%4)\n"
        "}\n";
    becomes(same, same);
}

static void a_value_goes_to_the_slice_that_uses_it(void **state)
{
    (void)state;
    becomes("program {\n" X A "  %2 = compute function 1 on slice 2 (%1)\n"
            "  %3 = result (%2)\n}\n",
            "program {\n" X A "  %2 = compute function 1 on slice 2 (%4)\n"
            "  %3 = result (%2)\n"
            "  %4 = transfer from 1x4 to slice 2 as 1x4 (%1)\n"
            "}\n");
}

static void a_value_is_cut_anew_on_its_own_slice(void **state)
{
    (void)state;
    becomes("program {\n" X A "  %2 = compute function 2 on slice 1 (%1)\n"
            "  %3 = result (%2)\n}\n",
            "program {\n" X A "  %2 = compute function 2 on slice 1 (%4)\n"
            "  %3 = result (%2)\n"
            "  %4 = transfer from 1x4 to slice 1 as 4x1 (%1)\n"
            "}\n");
}

static void users_of_one_place_share_a_transfer(void **state)
{
    (void)state;
    becomes("program {\n" X A "  %2 = compute function 7 on slice 2 (%1, %1)\n"
            "  %3 = compute function 2 on slice 2 (%1)\n"
            "  %4 = compute function 9 on slice 2 (%1)\n"
            "  %5 = compute function 3 on slice 3 (%1)\n"
            "  %6 = result (%2)\n"
            "  %7 = result (%1)\n"
            "}\n",
            "program {\n" X A "  %2 = compute function 7 on slice 2 (%8, %9)\n"
            "  %3 = compute function 2 on slice 2 (%9)\n"
            "  %4 = compute function 9 on slice 2 (%8)\n"
            "  %5 = compute function 3 on slice 3 (%10)\n"
            "  %6 = result (%2)\n"
            "  %7 = result (%1)\n"
            "  %8 = transfer from 1x4 to slice 2 as 1x4 (%1)\n"
            "  %9 = transfer from 1x4 to slice 2 as 4x1 (%1)\n"
            "  %10 = transfer from 1x4 to slice 3 as 1x1 (%1)\n"
            "}\n");
}

static void an_argument_says_how_it_lies(void **state)
{
    (void)state;
    becomes("program {\n"
            "  %0 = argument \"x\" : f32[2,8] on slice 1 as 4x1\n"
            "  %1 = compute function 1 on slice 2 (%0)\n"
            "  %2 = result (%1)\n"
            "}\n",
            "program {\n"
            "  %0 = argument \"x\" : f32[2,8] on slice 1 as 4x1\n"
            "  %1 = compute function 1 on slice 2 (%3)\n"
            "  %2 = result (%1)\n"
            "  %3 = transfer from 4x1 to slice 2 as 1x4 (%0)\n"
            "}\n");
}

static void a_slice_of_one_device_has_all_of_it(void **state)
{
    (void)state;
    becomes("program {\n"
            "  %0 = argument \"x\" : f32[8,8] on slice 3\n"
            "  %1 = compute function 1 on slice 2 (%0)\n"
            "  %2 = result (%1)\n"
            "}\n",
            "program {\n"
            "  %0 = argument \"x\" : f32[8,8] on slice 3\n"
            "  %1 = compute function 1 on slice 2 (%3)\n"
            "  %2 = result (%1)\n"
            "  %3 = transfer from 1x1 to slice 2 as 1x4 (%0)\n"
            "}\n");
}

static void transfers_of_the_clients_are_completed(void **state)
{
    (void)state;
    becomes("program {\n" X A "  %2 = transfer from ? to slice 3 as ? (%1)\n"
            "  %3 = transfer from ? to slice 2 as 4x1 (%2)\n"
            "  %4 = compute function 1 on slice 2 (%3)\n"
            "  %5 = result (%4)\n"
            "}\n",
            "program {\n" X A
            "  %2 = transfer from 1x4 to slice 3 as 1x1 (%1)\n"
            "  %3 = transfer from 1x1 to slice 2 as 4x1 (%2)\n"
            "  %4 = compute function 1 on slice 2 (%6)\n"
            "  %5 = result (%4)\n"
            "  %6 = transfer from 4x1 to slice 2 as 1x4 (%3)\n"
            "}\n");
}

/* As on one slice, where it needs no transfer. */
static void what_nobody_says_goes_shard_by_shard(void **state)
{
    (void)state;
    becomes("program {\n" X "  %1 = compute function 4 on slice 1 (%0)\n"
            "  %2 = compute function 4 on slice 2 (%1)\n"
            "  %3 = compute function 10 on slice 1 ()\n"
            "  %4 = compute function 11 on slice 2 (%3)\n"
            "  %5 = result (%2)\n}\n",
            "program {\n" X "  %1 = compute function 4 on slice 1 (%0)\n"
            "  %2 = compute function 4 on slice 2 (%6)\n"
            "  %3 = compute function 10 on slice 1 ()\n"
            "  %4 = compute function 11 on slice 2 (%7)\n"
            "  %5 = result (%2)\n"
            "  %6 = transfer from 4x1 to slice 2 as 4x1 (%1)\n"
            "  %7 = transfer from *4 to slice 2 as *4 (%3)\n"
            "}\n");
    /* Not if their shardings differ. */
    refuses("program {" X "%1 = compute \"A\" function 4 on slice 1 (%0)"
            "%2 = compute \"B\" function 11 on slice 2 (%1) %3 = result (%2) }",
            "node 2 \"B\": input 0, of node 1 \"A\": it goes from slice 1 to "
            "slice 2, where its sharding is unknown; move it by a transfer "
            "with shardings");
}

static void what_is_not_known_is_asked_for(void **state)
{
    (void)state;
    refuses(
        "program {" X "%1 = compute \"B\" function 1 on slice 2 (%0)"
        "%2 = result (%1) }",
        "node 1 \"B\": input 0, of node 0 \"x\": it goes from slice 1 to slice "
        "2, where its sharding is unknown; give it in the argument's node");
    refuses("program {" X "%1 = compute \"A\" function 4 on slice 1 (%0)"
            "%2 = compute \"B\" function 1 on slice 2 (%1) %3 = result (%2) }",
            "node 2 \"B\": input 0, of node 1 \"A\": it goes from slice 1 to "
            "slice 2, where its sharding is unknown; move it by a transfer "
            "with shardings");
    refuses("program {" X A "%2 = compute \"B\" function 4 on slice 2 (%1)"
            "%3 = result (%2) }",
            "node 2 \"B\": input 0, of node 1 \"A\": it goes from slice 1 to "
            "slice 2, and the function's sharding for it is unknown; move it "
            "by a transfer with shardings");
    refuses("program {" X "%1 = transfer from ? to slice 3 as 1x1 (%0)"
            "%2 = result (%1) }",
            "node 1: input 0, of node 0 \"x\": its sharding is unknown; give "
            "it in the argument's node or in the transfer");
    refuses_with(TOW_UNIMPLEMENTED,
                 "program {" X A "%2 = compute \"B\" function 5 on slice 2 (%1)"
                 "%3 = result (%2) }",
                 "node 2 \"B\": input 0, of node 1 \"A\": a manual sharding: "
                 "what each device holds is known to the function alone");
}

static void arrays_of_other_shapes_are_refused(void **state)
{
    (void)state;
    refuses("program {" X A "%2 = compute \"B\" function 8 on slice 2 (%1)"
            "%3 = result (%2) }",
            "node 2 \"B\": input 0, of node 1 \"A\": the whole array is "
            "f32[8,8], but the function takes f32[8,16]");
}

TOW_TEST_MAIN(cmocka_unit_test(values_that_are_where_they_are_used_stay),
              cmocka_unit_test(a_value_goes_to_the_slice_that_uses_it),
              cmocka_unit_test(a_value_is_cut_anew_on_its_own_slice),
              cmocka_unit_test(users_of_one_place_share_a_transfer),
              cmocka_unit_test(an_argument_says_how_it_lies),
              cmocka_unit_test(a_slice_of_one_device_has_all_of_it),
              cmocka_unit_test(transfers_of_the_clients_are_completed),
              cmocka_unit_test(what_nobody_says_goes_shard_by_shard),
              cmocka_unit_test(what_is_not_known_is_asked_for),
              cmocka_unit_test(arrays_of_other_shapes_are_refused))
