/* Every kind of collective that XLA's CPU compiler emits, with every element
 * type, in groups of all shapes, in loops and on several channels. */
#include "gang.h"

#include <stdio.h>
#include <string.h>

#include "element.h"

/* -- Every type ------------------------------------------------------------ */

/* The text of a program. */
typedef struct text {
    char bytes[8192];
    size_t size;
} text_t;

#define ADD_TEXT(TEXT, ...)                         \
    ((TEXT)->size +=                                \
     (size_t)snprintf((TEXT)->bytes + (TEXT)->size, \
                      sizeof((TEXT)->bytes) - (TEXT)->size, __VA_ARGS__))

static const char *operation_of(const element_kind_t *kind,
                                element_reduction_t reduction)
{
    static const char *const names[] = {"add", "multiply", "minimum",
                                        "maximum"};
    static const char *const of_pred[] = {"or", "and"};
    return kind->type == TOW_TYPE_PRED ? of_pred[reduction] : names[reduction];
}

static size_t reduction_count(const element_kind_t *kind)
{
    size_t count = 0;
    while (count < ELEMENT_REDUCTION_COUNT &&
           element_can(kind, (element_reduction_t)count))
        count++;
    return count;
}

static void add_region(text_t *text, const element_kind_t *kind,
                       element_reduction_t reduction)
{
    ADD_TEXT(text,
             "({^bb0(%%x: tensor<%s>, %%y: tensor<%s>):\n"
             "  %%z = stablehlo.%s %%x, %%y : tensor<%s>\n"
             "  stablehlo.return %%z : tensor<%s>\n"
             "})",
             kind->name, kind->name, operation_of(kind, reduction), kind->name,
             kind->name);
}

/* All reductions, each on a channel of its own, then gather, scatter,
 * all-to-all and permute. Permute and all-to-all over replicas have no channel:
 * with one, XLA takes their groups for partitions. */
static void write_program(text_t *text, const element_kind_t *kind)
{
    const char *name = kind->name;
    const size_t reductions = reduction_count(kind);
    text->size = 0;
    ADD_TEXT(text, "func.func public @main(%%a: tensor<4x%s>) -> (", name);
    for (size_t i = 0; i < reductions; i++)
        ADD_TEXT(text, "tensor<4x%s>, ", name);
    ADD_TEXT(text,
             "tensor<16x%s>, tensor<1x%s>, tensor<4x%s>, tensor<4x%s>) {\n",
             name, name, name, name);
    for (size_t i = 0; i < reductions; i++) {
        ADD_TEXT(text, "%%r%zu = \"stablehlo.all_reduce\"(%%a) ", i);
        add_region(text, kind, (element_reduction_t)i);
        ADD_TEXT(text,
                 " {replica_groups = " GROUPS_ALL
                 ", channel_handle = #stablehlo.channel_handle<handle = %zu, "
                 "type = 0>} : (tensor<4x%s>) -> tensor<4x%s>\n",
                 i + 1, name, name);
    }
    ADD_TEXT(text,
             "%%all = \"stablehlo.all_gather\"(%%a) {all_gather_dim = 0 : i64, "
             "replica_groups = " GROUPS_ALL
             "} : (tensor<4x%s>) -> tensor<16x%s>\n"
             "%%part = \"stablehlo.reduce_scatter\"(%%a) ",
             name, name);
    add_region(text, kind, ELEMENT_SUM);
    ADD_TEXT(text,
             " {scatter_dimension = 0 : i64, replica_groups = " GROUPS_ALL
             "} : (tensor<4x%s>) -> tensor<1x%s>\n"
             "%%turned = \"stablehlo.all_to_all\"(%%a) {split_dimension = 0 : "
             "i64, concat_dimension = 0 : i64, split_count = 4 : i64, "
             "replica_groups = " GROUPS_ALL
             "} : (tensor<4x%s>) -> tensor<4x%s>\n"
             "%%moved = \"stablehlo.collective_permute\"(%%a) "
             "{source_target_pairs = dense<[[0, 1], [1, 2], [2, 3], [3, 0]]> : "
             "tensor<4x2xi64>} : (tensor<4x%s>) -> tensor<4x%s>\nreturn ",
             name, name, name, name, name, name);
    for (size_t i = 0; i < reductions; i++)
        ADD_TEXT(text, "%%r%zu, ", i);
    ADD_TEXT(text, "%%all, %%part, %%turned, %%moved : ");
    for (size_t i = 0; i < reductions; i++)
        ADD_TEXT(text, "tensor<4x%s>, ", name);
    ADD_TEXT(text,
             "tensor<16x%s>, tensor<1x%s>, tensor<4x%s>, tensor<4x%s>\n}\n",
             name, name, name, name);
    assert_true(text->size < sizeof(text->bytes));
}

static double complex reduced(const element_kind_t *kind,
                              element_reduction_t reduction, size_t index)
{
    double complex value = element_sent(kind, 0, index);
    for (size_t rank = 1; rank < MEMBER_COUNT; rank++)
        value = element_reduce(kind, reduction, value,
                               element_sent(kind, rank, index));
    return value;
}

/* Element `index` of output `output` of member `rank`. */
static double complex expected_at(const element_kind_t *kind, size_t output,
                                  size_t rank, size_t index)
{
    const size_t reductions = reduction_count(kind);
    if (output < reductions)
        return reduced(kind, (element_reduction_t)output, index);
    switch (output - reductions) {
    case 0: return element_sent(kind, index / 4, index % 4);
    case 1: return reduced(kind, ELEMENT_SUM, rank);
    case 2: return element_sent(kind, index, rank);
    default:
        return element_sent(kind, (rank + MEMBER_COUNT - 1) % MEMBER_COUNT,
                            index);
    }
}

static void take_output(const element_kind_t *kind, PJRT_Buffer *buffer,
                        size_t output, size_t rank)
{
    const size_t moved = output - reduction_count(kind);
    const size_t count = moved == 0 ? 16 : moved == 1 ? 1 : 4;
    unsigned char got[256], expected[16];
    download(buffer, got, count * kind->bytes);
    destroy(buffer);
    for (size_t i = 0; i < count; i++) {
        element_write(kind, expected_at(kind, output, rank, i), expected);
        if (memcmp(got + i * kind->bytes, expected, kind->bytes) != 0)
            fail_msg("%s: output %zu of rank %zu, element %zu", kind->name,
                     output, rank, i);
    }
}

static PJRT_Buffer *upload_elements(process_t *process, size_t device,
                                    const element_kind_t *kind)
{
    unsigned char bytes[4 * 16];
    for (size_t i = 0; i < 4; i++)
        element_write(kind, element_sent(kind, rank_of(process, device), i),
                      bytes + i * kind->bytes);
    PJRT_Buffer *buffer = NULL;
    expect_ok(try_upload(process->client, device_at(process->client, device),
                         (PJRT_Buffer_Type)kind->type, bytes, (int64_t[]){4}, 1,
                         &buffer));
    return buffer;
}

static void run_type(process_t *process, size_t index)
{
    const element_kind_t *kind = &ELEMENT_KINDS[index];
    PJRT_LoadedExecutable *program = load(process, index);
    for (uint64_t run = 0; run < 3; run++) {
        call_t call = {.executable = program,
                       .run_id = (1ull << 40) + 10 * index + run,
                       .device_count = DEVICES_EACH,
                       .argument_count = 1};
        for (size_t i = 0; i < DEVICES_EACH; i++)
            call.arguments[i][0] = upload_elements(process, i, kind);
        execute(&call);
        for (size_t i = 0; i < DEVICES_EACH; i++) {
            destroy(call.arguments[i][0]);
            for (size_t k = 0; k < reduction_count(kind) + 4; k++)
                take_output(kind, call.outputs[i][k], k, rank_of(process, i));
        }
    }
    unload(program);
}

static void run_every_type(process_t *process)
{
    assert_int_equal(program_count(process), ELEMENT_KIND_COUNT);
    for (size_t i = 0; i < ELEMENT_KIND_COUNT; i++)
        run_type(process, i);
}

static void every_kind_works_with_every_type(void **state)
{
    static text_t text;
    gang_t gang;
    gang_open(&gang);
    for (size_t i = 0; i < ELEMENT_KIND_COUNT; i++) {
        write_program(&text, &ELEMENT_KINDS[i]);
        gang_add_program(&gang, text.bytes, MEMBER_COUNT);
    }
    gang_start(&gang, "every_type");
    gang_close(&gang);
}

/* -- Groups, loops and channels -------------------------------------------- */

/* Ranks 0 to 2 add up, and rank 3 is alone. */
static void run_unequal_groups(process_t *process)
{
    PJRT_LoadedExecutable *program = load(process, 0);
    for (uint64_t run = 1; run <= 10; run++) {
        call_t call = start(process, program, run);
        for (size_t i = 0; i < DEVICES_EACH; i++) {
            await(call.done[i]);
            if (rank_of(process, i) < 3)
                expect_values(call.outputs[i][0], 6, 36, 66, 96);
            else
                expect_values(call.outputs[i][0], 4, 14, 24, 34);
            destroy(call.outputs[i][0]);
        }
    }
    unload(program);
}

static void groups_may_be_of_unequal_size(void **state)
{
    static const char text[] = FUNCTION(ALL_REDUCE(
        "%0", "%a", "add", GROUPS_UNEQUAL, "") "return %0 : tensor<4xf32>\n");
    gang_t gang;
    gang_open(&gang);
    gang_add_program(&gang, text, MEMBER_COUNT);
    gang_start(&gang, "unequal_groups");
    gang_close(&gang);
}

/* Sub-gangs that overlap from one collective to the next, in a loop, with
 * channels and without; many runs are in flight at once. */
static void run_loops(process_t *process)
{
    enum {
        RUN_COUNT = 20
    };
    static call_t calls[RUN_COUNT];
    for (size_t k = 0; k < program_count(process); k++) {
        PJRT_LoadedExecutable *program = load(process, k);
        for (uint64_t run = 0; run < RUN_COUNT; run++)
            calls[run] = start(process, program, 1 + k * RUN_COUNT + run);
        for (uint64_t run = 0; run < RUN_COUNT; run++)
            finish(&calls[run], 2.5f, 12.5f, 22.5f, 32.5f);
        unload(program);
    }
}

static void sub_gangs_in_loops_and_channels_are_kept_apart(void **state)
{
    /* clang-format off */
    static const char plain[] = LOOP("50",
        ALL_REDUCE("%p", "%v", "add", GROUPS_PAIRS, "")
        ALL_REDUCE("%q", "%p", "add", GROUPS_ACROSS, "") QUARTER);
    static const char channels[] = LOOP("50",
        ALL_REDUCE("%p", "%v", "add", GROUPS_PAIRS, CHANNEL("7"))
        ALL_REDUCE("%q", "%p", "add", GROUPS_ACROSS, CHANNEL("8")) QUARTER);
    /* clang-format on */
    gang_t gang;
    gang_open(&gang);
    gang_add_program(&gang, plain, MEMBER_COUNT);
    gang_add_program(&gang, channels, MEMBER_COUNT);
    gang_start(&gang, "loops");
    gang_close(&gang);
}

static const part_t PARTS[] = {
    {"every_type", run_every_type},
    {"unequal_groups", run_unequal_groups},
    {"loops", run_loops},
};

#define CASE(name) cmocka_unit_test_setup(name, harness_set_up)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        CASE(every_kind_works_with_every_type),
        CASE(groups_may_be_of_unequal_size),
        CASE(sub_gangs_in_loops_and_channels_are_kept_apart),
    };
    return gang_main(argc, argv, PARTS, TOW_COUNT_OF(PARTS), tests,
                     TOW_COUNT_OF(tests));
}
