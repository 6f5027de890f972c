#include "device/sim/device_testing_impl.h"

#include <unistd.h>

static void our_models_are_whole(void **state)
{
    (void)state;
    char name[TOW_SIM_MODEL_NAME_MAX + 1];
    size_t count = 0;
    while (tow_sim_model_name(count, name)) {
        tow_sim_model_t model;
        must(tow_sim_model_find(name, &model));
        assert_string_equal(model.name, name);
        assert_true(model.memory_bytes >= (uint64_t)1 << 30);
        assert_true(model.host_bytes_per_second > 0);
        count++;
    }
    assert_int_equal(count, 6);
    tow_sim_model_t model;
    must(tow_sim_model_find("tpu_v4", &model));
    assert_string_equal(model.kind, "TPU v4");
    assert_int_equal(model.flops_per_second[TOW_TYPE_BF16], 275000000000000);
}

static void an_unknown_model_names_those_there_are(void **state)
{
    (void)state;
    tow_sim_model_t model;
    expect_error(tow_sim_model_find("tpu_v9", &model), TOW_NOT_FOUND,
                 "models.csv has no device model \"tpu_v9\"; it has: tpu_v3, "
                 "tpu_v4, a100_40gb, a100_80gb, h100_sxm, cpu_core");
}

static void expect_refused(const char *text, const char *words)
{
    tow_sim_model_t model;
    expect_error(tow_sim_model_parse(text, strlen(text), "file", "toy", &model),
                 TOW_INVALID_ARGUMENT, words);
}

#define HEAD "model,property,value,source\n"

static void bad_files_are_refused_with_the_line(void **state)
{
    (void)state;
    char text[1024];
    expect_refused("", "file, line 0: the first line must be");
    expect_refused("model;property\n", "file, line 1: the first line must be");
    expect_refused(HEAD "toy,kind\n", "file, line 2: not of the form");
    expect_refused(HEAD "toy,kind,x,y\n",
                   "line 2: each number needs its source");
    expect_refused(HEAD "t y,kind,x,\"y\"\n", "line 2: a model's name is");
    expect_refused(HEAD "toy,colour,1,\"y\"\n",
                   "line 2: no property is called \"colour\"");
    expect_refused(HEAD "toy,launch_ns,-1,\"y\"\n",
                   "line 2: \"-1\" is not a whole number above -1");
    expect_refused(HEAD "toy,memory_bytes,0,\"y\"\n",
                   "line 2: \"0\" is not a whole number above 0");
    expect_refused(HEAD "toy,memory_bytes,9223372036854775808,\"y\"\n",
                   "line 2: \"9223372036854775808\" is not");
    expect_refused(HEAD "toy,flops_per_second.f33,1,\"y\"\n",
                   "line 2: \"f33\" is no element type");
    expect_refused(HEAD "toy,launch_ns,1,\"y\"\ntoy,launch_ns,1,\"y\"\n",
                   "line 3: launch_ns is given twice");
    expect_refused(HEAD "toy,launch_ns,1,\"y\"\n", "model toy ends here and "
                                                   "has no kind");
    snprintf(text, sizeof(text), "%s%s", toy_models,
             strchr(toy_models, '\n') + 1);
    expect_refused(text, "given twice");
}

static void a_file_of_the_user_is_read(void **state)
{
    (void)state;
    char path[] = "/tmp/tow_models_XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    size_t size = strlen(toy_models);
    assert_int_equal(write(fd, toy_models, size), size);
    close(fd);
    tow_sim_model_t model;
    must(tow_sim_model_load(path, "toy", &model));
    assert_int_equal(model.launch_ns, 5);
    expect_error(tow_sim_model_load(path, "tpu_v4", &model), TOW_NOT_FOUND,
                 "it has: toy");
    unlink(path);
    expect_error(tow_sim_model_load(path, "toy", &model), TOW_NOT_FOUND, path);
}

static void times_are_rounded_up_and_bounded(void **state)
{
    (void)state;
    assert_int_equal(tow_sim_ns_at_rate(0, 7), 0);
    assert_int_equal(tow_sim_ns_at_rate(1, 1000000000), 1);
    assert_int_equal(tow_sim_ns_at_rate(1, 3000000000), 1);
    assert_int_equal(tow_sim_ns_at_rate(10, 3000000000), 4);
    assert_int_equal(tow_sim_ns_at_rate(UINT64_MAX, 1), TOW_SIM_NS_MAX);
    assert_int_equal(tow_sim_ns_add(TOW_SIM_NS_MAX, 1), TOW_SIM_NS_MAX);
}

static void collectives_take_what_the_formulas_say(void **state)
{
    (void)state;
    tow_sim_model_t model = toy_model();
    const struct {
        tow_sim_collective_kind_t kind;
        uint64_t bytes, members, ns;
    } cases[] = {
        {TOW_SIM_ALL_REDUCE, 800, 8, 1400 + 600},
        {TOW_SIM_ALL_REDUCE, 800, 1, 0},
        {TOW_SIM_ALL_GATHER, 800, 8, 700 + 300},
        {TOW_SIM_REDUCE_SCATTER, 800, 5, 640 + 300},
        {TOW_SIM_ALL_TO_ALL, 1, 2, 1 + 100},
        {TOW_SIM_PERMUTE, 800, 8, 800 + 100},
        {TOW_SIM_BROADCAST, 800, 8, 800 + 300},
        {TOW_SIM_BARRIER, 0, 9, 400},
        {TOW_SIM_ALL_REDUCE, UINT64_MAX, 2, TOW_SIM_NS_MAX},
    };
    for (size_t i = 0; i < TOW_COUNT_OF(cases); i++)
        assert_int_equal(tow_sim_model_collective_ns(&model, cases[i].kind,
                                                     cases[i].bytes,
                                                     cases[i].members),
                         cases[i].ns);
}

TOW_TEST_MAIN(cmocka_unit_test(our_models_are_whole),
              cmocka_unit_test(an_unknown_model_names_those_there_are),
              cmocka_unit_test(bad_files_are_refused_with_the_line),
              cmocka_unit_test(a_file_of_the_user_is_read),
              cmocka_unit_test(times_are_rounded_up_and_bounded),
              cmocka_unit_test(collectives_take_what_the_formulas_say))
