/* Programs of the fake: one line, "KIND COUNT", of arrays of COUNT floats. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fake_impl.h"

static const char *const kind_names[] = {
    [FAKE_ADD] = "add",       [FAKE_DONATE] = "donate", [FAKE_COPY] = "copy",
    [FAKE_HOLD] = "hold",     [FAKE_FAIL] = "fail",     [FAKE_LATE] = "late",
    [FAKE_REFUSE] = "refuse",
};

/* -- The device assignment -------------------------------------------------- */

typedef struct message {
    const uint8_t *at;
    const uint8_t *end;
} message_t;

static uint64_t read_varint(message_t *message)
{
    uint64_t value = 0;
    for (int shift = 0; message->at < message->end && shift < 64; shift += 7) {
        const uint8_t byte = *message->at++;
        value |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) break;
    }
    return value;
}

/* The next field with this number: a number, or a message in `out_inside`. */
static bool next_field(message_t *message, uint64_t wanted,
                       uint64_t *out_number, message_t *out_inside)
{
    while (message->at < message->end) {
        const uint64_t key = read_varint(message);
        *out_number = read_varint(message);
        if ((key & 7) == 2) {
            *out_inside = (message_t){message->at, message->at + *out_number};
            message->at += *out_number;
        }
        if (key >> 3 == wanted) return true;
    }
    return false;
}

static PJRT_Error *add_device(PJRT_Executable *executable, PJRT_Client *client,
                              uint64_t id)
{
    for (size_t i = 0; i < client->device_count; i++)
        if ((uint64_t)client->devices[i].description.id == id) {
            executable->devices[executable->device_count++] =
                &client->devices[i];
            return NULL;
        }
    return fake_error(PJRT_Error_Code_INVALID_ARGUMENT, "no device %d",
                      (int)id);
}

/* Of CompileOptionsProto, the ids of all devices. */
static PJRT_Error *assign(PJRT_Executable *executable, PJRT_Client *client,
                          const void *options, size_t size)
{
    uint64_t number;
    message_t at = {options, (const uint8_t *)options + size};
    message_t build = {0};
    message_t assignment = {0};
    message_t computation = {0};
    if (!next_field(&at, 3, &number, &build) ||
        !next_field(&build, 9, &number, &assignment))
        return fake_error(PJRT_Error_Code_INVALID_ARGUMENT,
                          "no device assignment");
    while (next_field(&assignment, 3, &number, &computation)) {
        message_t ids = computation;
        message_t packed = {0};
        while (next_field(&ids, 1, &number, &packed)) {
            PJRT_Error *error = add_device(executable, client, number);
            if (error != NULL) return error;
        }
    }
    return NULL;
}

/* -- Making ----------------------------------------------------------------- */

static bool parse(PJRT_Executable *executable, const char *text, size_t size)
{
    char kind[32];
    long long count = 0;
    if (size >= sizeof(executable->text)) return false;
    memcpy(executable->text, text, size);
    if (sscanf(executable->text, "%31s %lld", kind, &count) != 2) return false;
    for (size_t i = 0; i < sizeof(kind_names) / sizeof(kind_names[0]); i++) {
        if (strcmp(kind, kind_names[i]) != 0) continue;
        executable->kind = (fake_kind_t)i;
        executable->dims[0] = count;
        snprintf(executable->name, sizeof(executable->name), "%s", kind);
        return count >= 0;
    }
    return false;
}

static void describe(PJRT_Executable *executable)
{
    const bool is_donated = executable->kind == FAKE_DONATE;
    executable->rank_list[0] = 1;
    executable->types[0] = PJRT_Buffer_Type_F32;
    executable->argument_count =
        executable->kind == FAKE_ADD || is_donated ? 2 : 1;
    for (size_t i = 0; i < FAKE_ARGUMENT_COUNT_MAX; i++)
        executable->arrays[i] = (tow_xla_array_t){
            .element_type = PJRT_Buffer_Type_F32,
            .dimensions = executable->dims,
            .dimension_count = 1,
            .size_bytes = (size_t)executable->dims[0] * sizeof(float)};
    executable->signature = (tow_xla_signature_t){
        .struct_size = sizeof(executable->signature),
        .parameters = executable->arrays,
        .parameter_count = executable->argument_count,
        .outputs = executable->arrays,
        .output_count = 1,
        .aliases = &executable->alias,
        .alias_count = is_donated,
        .donated = &executable->donated,
        .donated_count = is_donated,
    };
    executable->cost = (PJRT_NamedValue){
        .struct_size = PJRT_NamedValue_STRUCT_SIZE,
        .name = "flops",
        .name_size = strlen("flops"),
        .type = PJRT_NamedValue_kFloat,
        .float_value = (float)executable->dims[0],
        .value_size = 1,
    };
}

static PJRT_Error *load(PJRT_Client *client, const char *text, size_t text_size,
                        const void *options, size_t options_size,
                        PJRT_LoadedExecutable **out_loaded)
{
    PJRT_Executable *executable = calloc(1, sizeof(*executable));
    PJRT_LoadedExecutable *loaded = calloc(1, sizeof(*loaded));
    if (executable == NULL || loaded == NULL) abort();
    executable->reference_count = 1;
    PJRT_Error *error = parse(executable, text, text_size)
                            ? assign(executable, client, options, options_size)
                            : fake_error(PJRT_Error_Code_INVALID_ARGUMENT,
                                         "'%.*s' is no program of the fake",
                                         (int)text_size, text);
    if (error != NULL) {
        free(executable);
        free(loaded);
        return error;
    }
    describe(executable);
    loaded->executable = executable;
    *out_loaded = loaded;
    return NULL;
}

/* -- Compilers that misbehave ----------------------------------------------- */

/* The socket of tow_compile_child, and a descriptor that its tests leave
 * open. */
enum {
    ANSWER_FD = 3,
    LEFT_OPEN_FD = 200
};

static PJRT_Error *crash(int number)
{
    fprintf(stderr, "noise\ncheck failed: 3 == 4\n");
    signal(number, SIG_DFL); /* Sanitizers install handlers. */
    sigset_t mine;
    sigemptyset(&mine);
    sigaddset(&mine, number);
    pthread_sigmask(SIG_UNBLOCK, &mine, NULL);
    raise(number);
    return NULL;
}

static _Noreturn void hang(void)
{
    fprintf(stderr, "still optimising\n");
    for (;;)
        pause();
}

static PJRT_Error *send_garbage(void)
{
    static const char garbage[] =
        "these are no words of the compiler's, at all: none of them is";
    fprintf(stderr, "gone mad\n");
    if (write(ANSWER_FD, garbage, sizeof(garbage)) < 0) return NULL;
    hang();
}

static const tow_xla_query_handler_t *asker;

void fake_set_query_handler(const tow_xla_query_handler_t *whom)
{
    asker = whom;
}

/* The error has the reply, or the reason why there is none. */
static PJRT_Error *ask(void)
{
    const tow_xla_partition_query_t question = {
        .kind = TOW_XLA_QUERY_RESULT_SHARDING,
        .target = TOW_XLA_PARTITION_TARGET,
        .config = {"6 x 9", 5}};
    tow_xla_partition_reply_t answer = {0};
    char error[TOW_XLA_CALL_ERROR_SIZE] = "";
    if (asker == NULL) return fake_error(PJRT_Error_Code_UNKNOWN, "no asker");
    if (asker->query(asker->context, &question, &answer, error,
                     sizeof(error)) != 0)
        return fake_error(PJRT_Error_Code_UNKNOWN, "refused: '%s'", error);
    return fake_error(PJRT_Error_Code_UNKNOWN, "answered: '%.*s'",
                      (int)answer.result_sharding.size,
                      answer.result_sharding.data);
}

/* Allocates until it fails, or far too much. */
static PJRT_Error *be_greedy(void)
{
    const size_t size = (size_t)1 << 30;
    for (int i = 0; i < 1024; i++)
        if (mmap(NULL, size, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
                 0) == MAP_FAILED)
            return fake_error(PJRT_Error_Code_RESOURCE_EXHAUSTED,
                              "no more than %d GiB", i);
    return fake_error(PJRT_Error_Code_UNKNOWN, "there is no limit");
}

static PJRT_Error *look_around(void)
{
    return fake_error(PJRT_Error_Code_UNKNOWN, fcntl(LEFT_OPEN_FD, F_GETFD) < 0
                                                   ? "inherited nothing"
                                                   : "inherited something");
}

/* NULL for all other programs. */
static PJRT_Error *misbehave(const PJRT_Program *program)
{
    char text[16] = {0};
    if (program->code_size >= sizeof(text)) return NULL;
    memcpy(text, program->code, program->code_size);
    if (strcmp(text, "abort") == 0) return crash(SIGABRT);
    if (strcmp(text, "segfault") == 0) return crash(SIGSEGV);
    if (strcmp(text, "exit") == 0) _exit(7);
    if (strcmp(text, "hang") == 0) hang();
    if (strcmp(text, "garbage") == 0) return send_garbage();
    if (strcmp(text, "greedy") == 0) return be_greedy();
    if (strcmp(text, "ask") == 0) return ask();
    if (strcmp(text, "look around") == 0) return look_around();
    return NULL;
}

PJRT_Error *fake_compile(PJRT_Client_Compile_Args *args)
{
    PJRT_Error *error = misbehave(args->program);
    if (error != NULL) return error;
    return load(args->client, args->program->code, args->program->code_size,
                args->compile_options, args->compile_options_size,
                &args->executable);
}

static void forget(PJRT_SerializedExecutable *serialized)
{
    free(serialized);
}

PJRT_Error *fake_serialize(PJRT_Executable_Serialize_Args *args)
{
    char *copy = strdup(args->executable->text);
    if (copy == NULL) abort();
    args->serialized_bytes = copy;
    args->serialized_bytes_size = strlen(copy);
    args->serialized_executable = (PJRT_SerializedExecutable *)copy;
    args->serialized_executable_deleter = forget;
    return NULL;
}

PJRT_Error *fake_deserialize(PJRT_Executable_DeserializeAndLoad_Args *args)
{
    return load(args->client, args->serialized_executable,
                args->serialized_executable_size,
                args->overridden_serialized_compile_options,
                args->overridden_serialized_compile_options_size,
                &args->loaded_executable);
}

void fake_executable_release(PJRT_Executable *executable)
{
    pthread_mutex_lock(&fake_lock);
    const bool is_last = --executable->reference_count == 0;
    pthread_mutex_unlock(&fake_lock);
    if (is_last) free(executable);
}

/* -- Running ---------------------------------------------------------------- */

static int
    released_count; /* held executions that may continue; under fake_lock */

void fake_pjrt_release(int count)
{
    pthread_mutex_lock(&fake_lock);
    released_count += count;
    pthread_cond_broadcast(&fake_changed);
    pthread_mutex_unlock(&fake_lock);
}

/* Under the lock. */
static bool has_arguments(const fake_execution_t *execution)
{
    for (size_t i = 0; i < execution->executable->argument_count; i++)
        if (!execution->arguments[i]->ready->is_ready) return false;
    return true;
}

/* Under the lock. */
bool fake_execution_may_run(fake_execution_t *execution)
{
    if (execution->poison.code != PJRT_Error_Code_OK) return true;
    if (!has_arguments(execution)) return false;
    if (!execution->is_held) return true;
    if (released_count == 0) return false;
    released_count--;
    execution->is_held = false;
    return true;
}

static bool is_kept(const PJRT_ExecuteOptions *options, int64_t index)
{
    for (size_t i = 0; i < options->num_non_donatable_input_indices; i++)
        if (options->non_donatable_input_indices[i] == index) return true;
    return false;
}

/* Takes the memory of the first argument for the result. */
static void donate(fake_execution_t *execution)
{
    if (execution->arguments[0] == NULL) abort(); /* Execute has counted. */
    execution->arguments[0]->is_deleted = true;
    execution->donated = execution->arguments[0];
}

static fake_execution_t *prepare(PJRT_LoadedExecutable_Execute_Args *args,
                                 size_t index)
{
    PJRT_Executable *executable = args->executable->executable;
    fake_execution_t *execution = calloc(1, sizeof(*execution));
    if (execution == NULL) abort();
    execution->executable = executable;
    execution->device = executable->devices[index];
    execution->launch_id = args->options->launch_id;
    execution->is_held = executable->kind == FAKE_HOLD;
    pthread_mutex_lock(&fake_lock);
    executable->reference_count++;
    pthread_mutex_unlock(&fake_lock);
    for (size_t i = 0; i < args->num_args; i++) {
        execution->arguments[i] = args->argument_lists[index][i];
        fake_buffer_retain(execution->arguments[i]);
    }
    execution->result = fake_buffer_make(
        execution->device, PJRT_Buffer_Type_F32, executable->dims, 1);
    execution->done = executable->kind == FAKE_LATE
                          ? fake_event_make()
                          : fake_event_retain(execution->result->ready);
    if (executable->kind == FAKE_DONATE && !is_kept(args->options, 0))
        donate(execution);
    return execution;
}

PJRT_Error *fake_execute(PJRT_LoadedExecutable_Execute_Args *args)
{
    PJRT_Executable *executable = args->executable->executable;
    if (executable->kind == FAKE_REFUSE)
        return fake_error(PJRT_Error_Code_RESOURCE_EXHAUSTED,
                          "no memory for the results");
    if (args->num_args != executable->argument_count)
        return fake_error(PJRT_Error_Code_INVALID_ARGUMENT,
                          "%zu arguments instead of %zu", args->num_args,
                          executable->argument_count);
    for (size_t i = 0; i < args->num_devices; i++) {
        fake_execution_t *execution = prepare(args, i);
        fake_buffer_retain(execution->result);
        args->output_lists[i][0] = execution->result;
        if (args->device_complete_events != NULL)
            args->device_complete_events[i] =
                fake_event_retain(execution->done);
        fake_device_submit(execution->device, execution);
    }
    return NULL;
}

PJRT_Error *fake_poison(PJRT_Device_PoisonExecution_Args *args)
{
    pthread_mutex_lock(&fake_lock);
    for (fake_execution_t *each = args->device->first; each != NULL;
         each = each->next) {
        if (each->launch_id != args->launch_id) continue;
        each->poison.code = args->error_code;
        snprintf(each->poison.message, sizeof(each->poison.message), "%.*s",
                 (int)args->error_message_size, args->error_message);
        args->poisoned = true;
        break;
    }
    pthread_cond_broadcast(&fake_changed);
    pthread_mutex_unlock(&fake_lock);
    return NULL;
}

/* They are there. */
static PJRT_Error find_error(const fake_execution_t *execution)
{
    PJRT_Error first = {0};
    for (size_t i = 0; i < execution->executable->argument_count; i++) {
        const PJRT_Error error =
            fake_event_await(execution->arguments[i]->ready);
        if (first.code == PJRT_Error_Code_OK) first = error;
    }
    const PJRT_Client *client = execution->device->client;
    return client->drops_poison ? (PJRT_Error){0} : first;
}

/* Not the host's memory, nor a buffer that is being read. */
static bool take_donated(fake_execution_t *execution)
{
    PJRT_Buffer *donor = execution->donated;
    if (donor == NULL) return false;
    pthread_mutex_lock(&fake_lock);
    const bool may_take = donor->host_done == NULL && donor->reader_count == 0;
    if (may_take) {
        execution->result->data = donor->data;
        donor->data = NULL;
    }
    pthread_mutex_unlock(&fake_lock);
    return may_take;
}

static PJRT_Error place_result(fake_execution_t *execution)
{
    if (take_donated(execution)) return (PJRT_Error){0};
    PJRT_Error *error = fake_buffer_allocate(execution->result);
    if (error == NULL) return (PJRT_Error){0};
    const PJRT_Error copy = *error;
    free(error);
    return copy;
}

static PJRT_Error compute(fake_execution_t *execution)
{
    const PJRT_Executable *executable = execution->executable;
    const float *left = execution->arguments[0]->data;
    if (executable->kind == FAKE_FAIL || executable->kind == FAKE_LATE)
        return (PJRT_Error){PJRT_Error_Code_INTERNAL, "the device caught fire"};
    PJRT_Error error = place_result(execution);
    if (error.code != PJRT_Error_Code_OK || left == NULL) return error;
    float *sum = execution->result->data;
    for (int64_t i = 0; i < executable->dims[0]; i++) {
        sum[i] = left[i];
        if (executable->argument_count == 2)
            sum[i] += ((const float *)execution->arguments[1]->data)[i];
    }
    return error;
}

static void *complete_when_released(void *context)
{
    PJRT_Event *done = context;
    const PJRT_Error error = {PJRT_Error_Code_INTERNAL,
                              "the device caught fire"};
    pthread_mutex_lock(&fake_lock);
    while (released_count == 0)
        pthread_cond_wait(&fake_changed, &fake_lock);
    released_count--;
    pthread_mutex_unlock(&fake_lock);
    fake_event_complete(done, &error);
    fake_event_release(done);
    return NULL;
}

/* Users of the result see the error before the completion event is ready. */
static void complete_late(fake_execution_t *execution, const PJRT_Error *error)
{
    PJRT_Event *ready = fake_event_retain(execution->result->ready);
    fake_event_complete(ready, error);
    fake_event_release(ready);
    pthread_t thread;
    if (pthread_create(&thread, NULL, complete_when_released,
                       fake_event_retain(execution->done)) != 0)
        abort();
    pthread_detach(thread);
}

void fake_execution_run(fake_execution_t *execution)
{
    PJRT_Error error = execution->poison;
    if (error.code == PJRT_Error_Code_OK) error = find_error(execution);
    if (error.code == PJRT_Error_Code_OK) error = compute(execution);
    const bool is_late = execution->executable->kind == FAKE_LATE;
    if (is_late) complete_late(execution, &error);
    for (size_t i = 0; i < execution->executable->argument_count; i++)
        fake_buffer_release(execution->arguments[i]);
    fake_buffer_release(execution->result);
    fake_executable_release(execution->executable);
    if (!is_late) fake_event_complete(execution->done, &error);
    fake_event_release(execution->done);
    free(execution);
}
