/* Partition queries: functions of the user that compilers call, for
 * jax.experimental.custom_partitioning and jax.debug.inspect_array_sharding.
 *
 * The compiler is in another process of the cluster. When it reaches such an
 * operation, it sends a query through the controller. The thread that waits in
 * PJRT_Client_Compile calls the function and sends its reply, as if the
 * compiler were in the same process. The function may itself compile and run
 * programs.
 *
 * Programs name functions by numbers and addresses of this process. A function
 * that a query names is called only if the program that was sent names it too.
 */
#include <string.h>

#include "device/partition_query.h"
#include "pjrt/plugin_impl.h"
#include "pjrt/tuning.h"

/* -- XLA's interface ------------------------------------------------------- */

/* PJRT's Custom Partitioner extension, whose header is not with the others.
 * The order of fields is XLA's, their names are ours. */

typedef struct text {
    const char *data;
    size_t size;
} text_t;

typedef struct aval {
    text_t shape;
    bool has_sharding;
    text_t sharding;
} aval_t;

typedef struct outcome {
    int64_t version;
    void *data;                  /* out */
    void (*cleanup)(void *data); /* out: frees all results */
    bool has_error;              /* out */
    PJRT_Error_Code code;        /* out */
    text_t error;                /* out */
} outcome_t;

typedef struct partition_args {
    outcome_t outcome;
    size_t operand_count;
    aval_t *operands;
    aval_t result;
    text_t config;
    text_t program;            /* out */
    text_t *operand_shardings; /* out */
    text_t result_sharding;    /* out */
} partition_args_t;

typedef struct infer_args {
    outcome_t outcome;
    size_t operand_count;
    aval_t *operands;
    text_t result_shape;
    text_t config;
    bool has_result_sharding; /* out */
    text_t result_sharding;   /* out */
} infer_args_t;

typedef struct user_args {
    outcome_t outcome;
    text_t config;
    text_t result_shape;
    text_t result_sharding; /* in and out */
} user_args_t;

typedef struct functions {
    int64_t version;
    void *private_data;
    void (*destroy)(struct functions *functions);
    void (*partition)(struct functions *functions, partition_args_t *args);
    void (*infer)(struct functions *functions, infer_args_t *args);
    void (*user)(struct functions *functions, user_args_t *args);
    bool can_be_replicated;
} functions_t;

typedef struct register_args {
    size_t struct_size;
    const char *name;
    size_t name_size;
    functions_t *functions;
} register_args_t;

typedef struct batch_args {
    size_t struct_size;
    const char *name;
    size_t name_size;
} batch_args_t;

typedef struct partitioner_extension {
    PJRT_Extension_Base base;
    PJRT_Error *(*register_partitioner)(register_args_t *args);
    PJRT_Error *(*register_batched)(batch_args_t *args);
} partitioner_extension_t;

/* The configuration of a call that inspects a sharding. */
typedef struct look_args {
    char *sharding;
    size_t sharding_size;
    const char *error; /* out */
    void *scratch;
    void (*free_error)(struct look_args *args);
} look_args_t;

typedef struct looker {
    void (*look)(void *data, look_args_t *args);
    void *data;
} looker_t;

/* -- Registered functions -------------------------------------------------- */

/* Global to the process, as in PJRT; never removed. */
static struct {
    atomic_uint count;
    struct {
        char name[TOW_NAME_MAX + 1];
        _Atomic(functions_t *) functions; /* NULL: none, or being written */
    } entries[TOW_PLUGIN_PARTITIONERS_MAX];
} registered;

static PJRT_Error *register_partitioner(register_args_t *args)
{
    if (args->name_size == 0 || args->name_size > TOW_NAME_MAX)
        return take_error(TOW_ERROR(TOW_INVALID_ARGUMENT,
                                    "a custom call's name has %zu bytes",
                                    args->name_size));
    const unsigned place = atomic_fetch_add(&registered.count, 1);
    if (place >= TOW_PLUGIN_PARTITIONERS_MAX) {
        atomic_fetch_sub(&registered.count, 1);
        return take_error(TOW_ERROR(TOW_RESOURCE_EXHAUSTED,
                                    "%u custom calls have functions that "
                                    "partition them already",
                                    TOW_PLUGIN_PARTITIONERS_MAX));
    }
    memcpy(registered.entries[place].name, args->name, args->name_size);
    atomic_store(&registered.entries[place].functions, args->functions);
    return NULL;
}

/* Declares custom calls in machine code as batched. The cluster refuses such
 * calls, so there is nothing to store. */
static PJRT_Error *register_batched(batch_args_t *args)
{
    (void)args;
    return NULL;
}

PJRT_Extension_Base *tow_plugin_partitioner_extension(PJRT_Extension_Base *next)
{
    static partitioner_extension_t extension = {
        .base = {.struct_size = sizeof(extension),
                 .type = PJRT_Extension_Type_Custom_Partitioner},
        .register_partitioner = register_partitioner,
        .register_batched = register_batched,
    };
    extension.base.next = next;
    return &extension.base;
}

/* The most recent of that name. */
static functions_t *find_functions(const char *name)
{
    for (unsigned i = TOW_PLUGIN_PARTITIONERS_MAX; i > 0; i--) {
        functions_t *functions =
            atomic_load(&registered.entries[i - 1].functions);
        if (functions != NULL &&
            strcmp(registered.entries[i - 1].name, name) == 0)
            return functions;
    }
    return NULL;
}

static bool has_text(tow_bytes_t program, const char *text)
{
    return memmem(program.data, program.size, text, strlen(text)) != NULL;
}

/* Searches the bytes: a program that merely mentions such a name is compiled
 * for one function only, at no other cost. */
bool tow_plugin_program_has_queries(tow_bytes_t program)
{
    return has_text(program, TOW_XLA_INSPECT_TARGET) ||
           has_text(program, TOW_XLA_PARTITION_TARGET);
}

/* -- Replying -------------------------------------------------------------- */

static text_t text_of(tow_xla_bytes_t bytes)
{
    return (text_t){bytes.data, bytes.size};
}

static tow_xla_bytes_t bytes_of(text_t text)
{
    /* An empty text is a sharding too. */
    return (tow_xla_bytes_t){text.data != NULL ? text.data : "", text.size};
}

static aval_t aval_of(const tow_xla_partition_value_t *value)
{
    return (aval_t){.shape = text_of(value->shape),
                    .has_sharding = value->sharding.data != NULL,
                    .sharding = text_of(value->sharding)};
}

static aval_t *avals_of(const tow_xla_partition_query_t *question,
                        tow_arena_t *arena)
{
    aval_t *avals =
        tow_arena_calloc(arena, question->operand_count + 1, sizeof(avals[0]));
    for (size_t i = 0; avals != NULL && i < question->operand_count; i++)
        avals[i] = aval_of(&question->operands[i]);
    return avals;
}

/* Keeps the beginning and the end of a long traceback. */
static tow_status_t failed(tow_code_t code, const char *text, size_t size)
{
    enum {
        HALF = TOW_PLUGIN_CALLBACK_ERROR_SIZE / 2 - 100
    };
    static const char what[] =
        "a function of yours that the compiler asked failed: ";
    if (size <= 2 * HALF)
        return TOW_ERROR(code, "%s%.*s", what, (int)size, text);
    return TOW_ERROR(code, "%s%.*s\n...\n%.*s", what, HALF, text, HALF,
                     text + size - HALF);
}

static tow_status_t status_of(const outcome_t *outcome)
{
    if (!outcome->has_error) return TOW_OK;
    return failed((tow_code_t)outcome->code, outcome->error.data,
                  outcome->error.size);
}

static void clean_up(outcome_t *outcome)
{
    if (outcome->cleanup != NULL) outcome->cleanup(outcome->data);
}

/* A query, and the destination of the reply. */
typedef struct query {
    functions_t *functions; /* NULL: it only inspects */
    tow_xla_partition_query_t question;
    tow_arena_t arena;
    void **out_bytes;
    size_t *out_size;
} query_t;

static tow_status_t pack(query_t *asking,
                         const tow_xla_partition_reply_t *answer)
{
    return tow_partition_reply_pack(answer, asking->out_bytes,
                                    asking->out_size);
}

static tow_status_t pack_part(query_t *asking, const partition_args_t *args)
{
    const size_t count = args->operand_count;
    tow_xla_bytes_t *shardings =
        tow_arena_calloc(&asking->arena, count + 1, sizeof(shardings[0]));
    if (shardings == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    for (size_t i = 0; i < count; i++)
        shardings[i] = bytes_of(args->operand_shardings[i]);
    const tow_xla_partition_reply_t answer = {
        .program = bytes_of(args->program),
        .operand_shardings = shardings,
        .operand_count = count,
        .result_sharding = bytes_of(args->result_sharding)};
    return pack(asking, &answer);
}

static tow_status_t ask_partition(query_t *asking)
{
    const tow_xla_partition_query_t *question = &asking->question;
    partition_args_t args = {.operand_count = question->operand_count,
                             .operands = avals_of(question, &asking->arena),
                             .result = aval_of(&question->result),
                             .config = text_of(question->config)};
    if (args.operands == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    asking->functions->partition(asking->functions, &args);
    tow_status_t status = status_of(&args.outcome);
    if (status == TOW_OK) status = pack_part(asking, &args);
    clean_up(&args.outcome);
    return status;
}

static tow_status_t ask_result(query_t *asking)
{
    const tow_xla_partition_query_t *question = &asking->question;
    infer_args_t args = {.operand_count = question->operand_count,
                         .operands = avals_of(question, &asking->arena),
                         .result_shape = text_of(question->result.shape),
                         .config = text_of(question->config)};
    if (args.operands == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    asking->functions->infer(asking->functions, &args);
    tow_status_t status = status_of(&args.outcome);
    tow_xla_partition_reply_t answer = {0};
    if (args.has_result_sharding)
        answer.result_sharding = bytes_of(args.result_sharding);
    if (status == TOW_OK) status = pack(asking, &answer);
    clean_up(&args.outcome);
    return status;
}

static tow_status_t ask_user(query_t *asking)
{
    const tow_xla_partition_query_t *question = &asking->question;
    user_args_t args = {.config = text_of(question->config),
                        .result_shape = text_of(question->result.shape),
                        .result_sharding = text_of(question->result.sharding)};
    asking->functions->user(asking->functions, &args);
    tow_status_t status = status_of(&args.outcome);
    const tow_xla_partition_reply_t answer = {
        .result_sharding = bytes_of(args.result_sharding)};
    if (status == TOW_OK) status = pack(asking, &answer);
    clean_up(&args.outcome);
    return status;
}

static tow_status_t ask_look(query_t *asking)
{
    const tow_xla_partition_query_t *question = &asking->question;
    looker_t looker;
    if (question->config.size != sizeof(looker) || question->operand_count < 1)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "a call of %s with a configuration of %zu bytes and "
                         "%zu operands",
                         question->target, question->config.size,
                         question->operand_count);
    const tow_xla_bytes_t sharding = question->operands[0].sharding;
    if (sharding.data == NULL)
        return TOW_ERROR(TOW_INTERNAL,
                         "the compiler does not know how an array is sharded "
                         "that the program wants to inspect");
    memcpy(&looker, question->config.data, sizeof(looker));
    look_args_t args = {.sharding = (char *)sharding.data, /* only read */
                        .sharding_size = sharding.size};
    looker.look(looker.data, &args);
    if (args.error == NULL)
        return pack(asking, &(tow_xla_partition_reply_t){0});
    tow_status_t status = failed(TOW_UNKNOWN, args.error, strlen(args.error));
    if (args.free_error != NULL) args.free_error(&args);
    return status;
}

static tow_status_t check_config(const tow_xla_partition_query_t *question,
                                 tow_bytes_t program)
{
    if (question->config.size > 0 &&
        memmem(program.data, program.size, question->config.data,
               question->config.size) != NULL)
        return TOW_OK;
    return TOW_ERROR(TOW_PERMISSION_DENIED,
                     "the cluster's compiler asks for a function that the "
                     "program does not name");
}

static tow_status_t dispatch(query_t *asking)
{
    const tow_xla_partition_query_t *question = &asking->question;
    if (question->kind == TOW_XLA_QUERY_INSPECT) return ask_look(asking);
    asking->functions = find_functions(question->target);
    if (asking->functions == NULL)
        return TOW_ERROR(TOW_FAILED_PRECONDITION,
                         "this process has no function to partition "
                         "the custom call '%s'",
                         question->target);
    switch (question->kind) {
    case TOW_XLA_QUERY_PARTITION: return ask_partition(asking);
    case TOW_XLA_QUERY_RESULT_SHARDING: return ask_result(asking);
    case TOW_XLA_QUERY_USER_SHARDING: return ask_user(asking);
    case TOW_XLA_QUERY_INSPECT: break;
    }
    TOW_UNREACHABLE();
}

/* `context` is the program. */
static tow_status_t answer(void *context, tow_bytes_t question,
                           void **out_bytes, size_t *out_size)
{
    const tow_bytes_t *program = context;
    query_t asking = {.out_bytes = out_bytes, .out_size = out_size};
    tow_arena_init(&asking.arena, 0);
    tow_status_t status =
        tow_partition_query_unpack(question, &asking.arena, &asking.question);
    if (status == TOW_OK) status = check_config(&asking.question, *program);
    if (status == TOW_OK) status = dispatch(&asking);
    tow_arena_deinit(&asking.arena);
    return status;
}

tow_status_t tow_plugin_compile_with_queries(tow_slice_t *slice,
                                             const tow_source_t *source,
                                             tow_function_t **out_function)
{
    tow_bytes_t program = {source->bytes, source->size};
    const tow_partition_responder_t responder = {.answer = answer,
                                                 .context = &program};
    return tow_function_compile_with_queries(slice, source, &responder,
                                             out_function);
}
