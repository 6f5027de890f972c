#include "random_program.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "../../examples/c/check.h"
#include "base/random.h"

#define VALUES_MAX  256
#define NODES_MIN   4
#define NODES_MAX   48
#define BYTES_MAX   (UINT64_C(160) << 20) /* of all values of a program */
#define SMALL_BYTES (64u << 10)

/* Not all of them powers of two: large blocks are rounded up by allocators. */
static const uint32_t kibibytes[SIZE_COUNT] = {1,   24,   48,   64,
                                               300, 1024, 2560, 6144};

uint64_t size_bytes(size_t size)
{
    return (uint64_t)kibibytes[size] << 10;
}

/* -- Functions --------------------------------------------------------------- */

#define A "tensor<%1$uxi32>"
#define M "tensor<%2$ux16xi32>"
#define W "tensor<16x16xi32>"
static const char *const texts[OP_COUNT] = {
    [OP_PLUS] = "func.func @main(%%x: " A ") -> " A " {\n"
                "  %%c = stablehlo.constant dense<1> : " A "\n"
                "  %%y = stablehlo.add %%x, %%c : " A "\n"
                "  return %%y : " A "\n}\n",
    [OP_ADD] = "func.func @main(%%x: " A ", %%y: " A ") -> " A " {\n"
               "  %%z = stablehlo.add %%x, %%y : " A "\n"
               "  return %%z : " A "\n}\n",
    [OP_BOTH] = "func.func @main(%%x: " A ") -> (" A ", " A ") {\n"
                "  %%c = stablehlo.constant dense<1> : " A "\n"
                "  %%y = stablehlo.add %%x, %%c : " A "\n"
                "  %%z = stablehlo.add %%x, %%x : " A "\n"
                "  return %%y, %%z : " A ", " A "\n}\n",
    [OP_MIX] = "func.func @main(%%x: " A ") -> " A " {\n"
               "  %%w = stablehlo.constant dense<1> : " W "\n"
               "  %%a = stablehlo.reshape %%x : (" A ") -> " M "\n"
               "  %%b = stablehlo.dot %%a, %%w : (" M ", " W ") -> " M "\n"
               "  %%c = stablehlo.dot %%b, %%w : (" M ", " W ") -> " M "\n"
               "  %%y = stablehlo.reshape %%c : (" M ") -> " A "\n"
               "  return %%y : " A "\n}\n",
    [OP_CONSUME] = "func.func @main(%%x: " A
                   " {tf.aliasing_output = 0 : i32}) -> " A " {\n"
                   "  %%c = stablehlo.constant dense<1> : " A "\n"
                   "  %%y = stablehlo.add %%x, %%c : " A "\n"
                   "  return %%y : " A "\n}\n",
};

static const char *const names[OP_COUNT] = {"plus", "add", "both", "mix",
                                            "consume"};

static tow_function_t *compile(tow_slice_t *slice, op_t op, size_t size)
{
    char text[1024];
    tow_function_t *function;
    const unsigned count = (unsigned)(size_bytes(size) / sizeof(int32_t));
    snprintf(text, sizeof(text), texts[op], count, count / 16);
    check(tow_function_compile(
        slice, TOW_WITH(tow_source_t, .bytes = text, .size = strlen(text)),
        &function));
    return function;
}

static void open_slices(machine_t *machine)
{
    tow_slice_t *all;
    check(tow_slice_open(machine->client, NULL, &all));
    machine->device_count = tow_slice_device_count(all);
    for (size_t i = 0; i < machine->device_count && i < DEVICES_MAX; i++) {
        tow_device_t device = {.struct_size = sizeof(device)};
        check(tow_slice_device(all, i, &device));
        machine->device_ids[i] = device.id;
        check(tow_slice_open(machine->client,
                             TOW_WITH(tow_slice_options_t,
                                      .devices = &device.id, .device_count = 1),
                             &machine->slices[i]));
    }
    tow_slice_release(all);
}

void machine_open(machine_t *machine)
{
    *machine = (machine_t){0};
    check(tow_client_open(NULL, &machine->client));
    open_slices(machine);
    for (size_t size = 0; size < SIZE_COUNT; size++)
        for (op_t op = 0; op < OP_COUNT; op++)
            machine->functions[size][op] =
                compile(machine->slices[0], op, size);
}

void machine_close(machine_t *machine)
{
    for (size_t size = 0; size < SIZE_COUNT; size++)
        for (op_t op = 0; op < OP_COUNT; op++)
            tow_function_release(machine->functions[size][op]);
    for (size_t i = 0; i < machine->device_count; i++)
        tow_slice_release(machine->slices[i]);
    tow_client_release(machine->client);
}

/* -- Programs ---------------------------------------------------------------- */

typedef struct builder {
    const machine_t *machine;
    random_program_t *out;
    tow_random_t random;
    value_t values[VALUES_MAX];
    size_t value_count;
    uint64_t bytes; /* of all values */
    bool is_told;
} builder_t;

static size_t below(builder_t *builder, size_t bound)
{
    return (size_t)tow_random_below(&builder->random, bound);
}

static void keep(builder_t *builder, value_t value)
{
    builder->bytes += size_bytes(value.size);
    builder->values[builder->value_count++] = value;
}

/* Half of the time one of the last few: chains, and values that live long. */
static value_t *pick(builder_t *builder)
{
    const size_t count = builder->value_count;
    const size_t near = count < 3 ? count : 3;
    return below(builder, 2) == 0
               ? &builder->values[count - 1 - below(builder, near)]
               : &builder->values[below(builder, count)];
}

static void add_argument(builder_t *builder)
{
    random_program_t *out = builder->out;
    value_t value = {.device = below(builder, builder->machine->device_count),
                     .size = below(builder, SIZE_COUNT),
                     .number = (uint32_t)out->argument_count + 1};
    const bool is_donated = below(builder, 3) == 0;
    const tow_array_type_t type = TOW_ARRAY_TYPE(
        TOW_TYPE_S32, (int64_t)(size_bytes(value.size) / sizeof(int32_t)));
    check(tow_program_argument(out->program,
                               builder->machine->slices[value.device], &type,
                               is_donated, &value.array));
    if (builder->is_told)
        printf("  v%zu: argument of %u KiB on %zu%s\n", builder->value_count,
               kibibytes[value.size], value.device,
               is_donated ? ", donated" : "");
    keep(builder, value);
    value.array = NULL;
    out->is_donated[out->argument_count] = is_donated;
    out->arguments[out->argument_count++] = value;
}

static void add_transfer(builder_t *builder)
{
    const machine_t *machine = builder->machine;
    const value_t *from = pick(builder);
    value_t value = *from;
    value.device =
        (from->device + 1 + below(builder, machine->device_count - 1)) %
        machine->device_count;
    check(tow_array_transfer(from->array,
                             TOW_WITH(tow_transfer_options_t,
                                      .slice = machine->slices[value.device]),
                             &value.array));
    if (builder->is_told)
        printf("  v%zu: v%zu (%u KiB) from %zu to %zu\n", builder->value_count,
               (size_t)(from - builder->values), kibibytes[value.size],
               from->device, value.device);
    builder->out->moved_bytes[from->device] += size_bytes(value.size);
    builder->out->moved_bytes[value.device] += size_bytes(value.size);
    if (size_bytes(value.size) < SMALL_BYTES) {
        builder->out->small_bytes[from->device] += size_bytes(value.size);
        builder->out->small_bytes[value.device] += size_bytes(value.size);
    }
    keep(builder, value);
}

/* Another value of the same size and device; perhaps the same. */
static const value_t *pick_like(builder_t *builder, const value_t *value)
{
    for (size_t tries = 0; tries < 8; tries++) {
        const value_t *other = pick(builder);
        if (other->device == value->device && other->size == value->size)
            return other;
    }
    return value;
}

static uint32_t compute(op_t op, uint32_t x, uint32_t y)
{
    switch (op) {
    case OP_ADD: return x + y;
    case OP_MIX: return 256 * x;
    default: return x + 1;
    }
}

static void add_call(builder_t *builder, op_t op, const value_t *x)
{
    const machine_t *machine = builder->machine;
    const value_t *y = op == OP_ADD ? pick_like(builder, x) : x;
    tow_array_t *inputs[] = {x->array, y->array};
    tow_array_t *outputs[2] = {NULL, NULL};
    const size_t output_count = op == OP_BOTH ? 2 : 1;
    check(tow_function_call(machine->functions[x->size][op],
                            machine->slices[x->device], inputs,
                            op == OP_ADD ? 2 : 1, outputs, output_count));
    if (builder->is_told)
        printf("  v%zu: %s of v%zu, v%zu (%u KiB) on %zu\n",
               builder->value_count, names[op], (size_t)(x - builder->values),
               (size_t)(y - builder->values), kibibytes[x->size], x->device);
    value_t value = *x;
    value.array = outputs[0];
    value.number = compute(op, x->number, y->number);
    const uint32_t twice = 2 * x->number;
    keep(builder, value);
    if (output_count == 1) return;
    value.array = outputs[1];
    value.number = twice;
    keep(builder, value);
}

/* Each argument is used: a program that does not use a slice is refused. */
static void add_nodes(builder_t *builder)
{
    random_program_t *out = builder->out;
    out->node_count = NODES_MIN + below(builder, NODES_MAX - NODES_MIN);
    for (size_t i = 0; i < out->node_count && builder->bytes < BYTES_MAX; i++)
        if (below(builder, 3) == 0)
            add_transfer(builder);
        else
            add_call(builder, (op_t)below(builder, OP_COUNT), pick(builder));
    for (size_t i = 0; i < out->argument_count; i++)
        add_call(builder, OP_PLUS, &builder->values[i]);
}

/* Of different values: two results with one value are two objects, and counted
 * twice. */
static void add_results(builder_t *builder)
{
    random_program_t *out = builder->out;
    const size_t wanted = 1 + below(builder, RESULTS_MAX);
    bool is_result[VALUES_MAX] = {false};
    for (size_t i = 0; i < wanted; i++) {
        value_t *value = pick(builder);
        if (is_result[value - builder->values]) continue;
        is_result[value - builder->values] = true;
        check(tow_program_result(out->program, value->array));
        out->results[out->result_count] = *value;
        out->results[out->result_count++].array = NULL;
    }
}

void random_program_make(const machine_t *machine, uint64_t seed, bool is_told,
                         random_program_t *out_program)
{
    builder_t builder = {
        .machine = machine, .out = out_program, .is_told = is_told};
    *out_program = (random_program_t){0};
    tow_random_init(&builder.random, seed);
    check(tow_program_create(machine->client, "random", &out_program->program));
    const size_t argument_count = 1 + below(&builder, ARGUMENTS_MAX);
    for (size_t i = 0; i < argument_count; i++)
        add_argument(&builder);
    add_nodes(&builder);
    add_results(&builder);
    for (size_t i = 0; i < builder.value_count; i++)
        tow_array_release(builder.values[i].array);
    check(tow_program_finish(out_program->program));
}
