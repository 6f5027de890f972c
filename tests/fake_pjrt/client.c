#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fake_impl.h"

/* -- Options ---------------------------------------------------------------- */

static const PJRT_NamedValue *find(const PJRT_Client_Create_Args *args,
                                   const char *name, PJRT_NamedValue_Type type)
{
    for (size_t i = 0; i < args->num_options; i++) {
        const PJRT_NamedValue *value = &args->create_options[i];
        if (value->name_size == strlen(name) &&
            memcmp(value->name, name, value->name_size) == 0 &&
            value->type == type)
            return value;
    }
    return NULL;
}

static int64_t number(const PJRT_Client_Create_Args *args, const char *name,
                      int64_t otherwise)
{
    const PJRT_NamedValue *value = find(args, name, PJRT_NamedValue_kInt64);
    return value != NULL ? value->int64_value : otherwise;
}

static bool flag(const PJRT_Client_Create_Args *args, const char *name)
{
    const PJRT_NamedValue *value = find(args, name, PJRT_NamedValue_kBool);
    return value != NULL && value->bool_value;
}

/* -- Several hosts ---------------------------------------------------------- */

/* Each host puts a key and waits for the keys of all others, on a thread of the
 * plugin. */
typedef struct meeting {
    PJRT_Client_Create_Args *args;
    int64_t host;
    int64_t host_count;
    int timeout_ms;
    PJRT_Error *error; /* owned */
} meeting_t;

static PJRT_Error *make_error(PJRT_Error_Code code, const char *message,
                              size_t size)
{
    return fake_error(code, "%.*s", (int)size, message);
}

static PJRT_Error *put(const meeting_t *meeting, const char *key)
{
    PJRT_CallbackError make = make_error;
    PJRT_KeyValuePutCallback_Args args = {
        .struct_size = PJRT_KeyValuePutCallback_Args_STRUCT_SIZE,
        .key = key,
        .key_size = strlen(key),
        .value = key,
        .value_size = strlen(key),
        .callback_error = &make,
        .user_arg = meeting->args->kv_put_user_arg,
    };
    return meeting->args->kv_put_callback(&args);
}

static PJRT_Error *get(const meeting_t *meeting, const char *key)
{
    PJRT_CallbackError make = make_error;
    PJRT_KeyValueGetCallback_Args args = {
        .struct_size = PJRT_KeyValueGetCallback_Args_STRUCT_SIZE,
        .key = key,
        .key_size = strlen(key),
        .timeout_in_ms = meeting->timeout_ms,
        .callback_error = &make,
        .user_arg = meeting->args->kv_get_user_arg,
    };
    PJRT_Error *error = meeting->args->kv_get_callback(&args);
    if (error != NULL) return error;
    const bool is_right = args.value_size == strlen(key) &&
                          memcmp(args.value, key, args.value_size) == 0;
    args.value_deleter_callback(args.value);
    return is_right ? NULL
                    : fake_error(PJRT_Error_Code_INTERNAL, "another value");
}

/* A key that does not exist is not found. */
static PJRT_Error *try_get(const meeting_t *meeting, const char *key)
{
    PJRT_CallbackError make = make_error;
    PJRT_KeyValueTryGetCallback_Args args = {
        .struct_size = PJRT_KeyValueTryGetCallback_Args_STRUCT_SIZE,
        .key = key,
        .key_size = strlen(key),
        .callback_error = &make,
        .user_arg = meeting->args->kv_try_get_user_arg,
    };
    PJRT_Error *error = meeting->args->kv_try_get_callback(&args);
    if (error == NULL) {
        args.value_deleter_callback(args.value);
        return fake_error(PJRT_Error_Code_INTERNAL, "%s is there", key);
    }
    const bool is_right = error->code == PJRT_Error_Code_NOT_FOUND;
    if (!is_right) return error;
    free(error);
    return NULL;
}

static void *run_meeting(void *context)
{
    meeting_t *meeting = context;
    char key[64];
    snprintf(key, sizeof(key), "fake/%d", (int)meeting->host);
    meeting->error = put(meeting, key);
    for (int64_t i = 0; meeting->error == NULL && i < meeting->host_count;
         i++) {
        snprintf(key, sizeof(key), "fake/%d", (int)i);
        meeting->error = get(meeting, key);
    }
    if (meeting->error == NULL) meeting->error = try_get(meeting, "fake/none");
    return NULL;
}

static PJRT_Error *meet(PJRT_Client_Create_Args *args)
{
    meeting_t meeting = {.args = args,
                         .host = number(args, "host", 0),
                         .host_count = number(args, "host_count", 1),
                         .timeout_ms = (int)number(args, "timeout_ms", 60000)};
    if (meeting.host_count == 1) return NULL;
    if (args->kv_get_callback == NULL)
        return fake_error(PJRT_Error_Code_FAILED_PRECONDITION,
                          "several hosts need key-value callbacks");
    pthread_t thread;
    if (pthread_create(&thread, NULL, run_meeting, &meeting) != 0) abort();
    pthread_join(thread, NULL);
    return meeting.error;
}

/* -- Creating and destroying ------------------------------------------------ */

static PJRT_Error *refusal(const PJRT_Client_Create_Args *args)
{
    const PJRT_NamedValue *text = find(args, "refuse", PJRT_NamedValue_kString);
    if (text != NULL)
        return fake_error(PJRT_Error_Code_UNAVAILABLE, "%.*s",
                          (int)text->value_size, text->string_value);
    const PJRT_NamedValue *list =
        find(args, "sums_to_six", PJRT_NamedValue_kInt64List);
    int64_t sum = 0;
    for (size_t i = 0; list != NULL && i < list->value_size; i++)
        sum += list->int64_array_value[i];
    const PJRT_NamedValue *half = find(args, "half", PJRT_NamedValue_kFloat);
    if ((list != NULL && sum != 6) ||
        (half != NULL && half->float_value != 0.5F))
        return fake_error(PJRT_Error_Code_INVALID_ARGUMENT, "wrong options");
    return NULL;
}

static void start_device(PJRT_Client *client, size_t index)
{
    PJRT_Device *device = &client->devices[index];
    device->client = client;
    device->description.id = (int)(100 + index); /* unlike its index */
    snprintf(device->description.name, sizeof(device->description.name),
             "FakeDevice(id=%d)", device->description.id);
    for (int i = 0; i < FAKE_MEMORY_COUNT; i++) {
        device->memories[i].id = (int)(10 * index) + i;
        device->memories[i].kind = i == 0 ? "device" : "pinned_host";
        device->memories[i].device = device;
        device->memory_list[i] = &device->memories[i];
    }
    client->device_list[index] = device;
    if (pthread_create(&device->thread, NULL, fake_device_loop, device) != 0)
        abort();
}

PJRT_Error *fake_client_create(PJRT_Client_Create_Args *args)
{
    PJRT_Error *error = refusal(args);
    if (error == NULL) error = meet(args);
    if (error != NULL) return error;
    PJRT_Client *client = calloc(1, sizeof(*client));
    if (client == NULL) abort();
    client->memory_limit_bytes = number(args, "memory_limit_bytes", 0);
    client->drops_poison = flag(args, "drops_poison");
    client->fails_uploads = flag(args, "fails_uploads");
    client->is_off_host = flag(args, "is_off_host");
    client->device_count = (size_t)number(args, "device_count", 1);
    if (client->device_count > FAKE_DEVICE_COUNT_MAX) abort();
    for (size_t i = 0; i < client->device_count; i++)
        start_device(client, i);
    args->client = client;
    return NULL;
}

PJRT_Error *fake_client_destroy(PJRT_Client_Destroy_Args *args)
{
    PJRT_Client *client = args->client;
    pthread_mutex_lock(&fake_lock);
    client->is_ending = true;
    pthread_cond_broadcast(&fake_changed);
    pthread_mutex_unlock(&fake_lock);
    for (size_t i = 0; i < client->device_count; i++)
        pthread_join(client->devices[i].thread, NULL);
    free(client);
    return NULL;
}

PJRT_Error *fake_client_devices(PJRT_Client_AddressableDevices_Args *args)
{
    args->addressable_devices = args->client->device_list;
    args->num_addressable_devices = args->client->device_count;
    return NULL;
}

PJRT_Error *fake_device_memory_stats(PJRT_Device_MemoryStats_Args *args)
{
    pthread_mutex_lock(&fake_lock);
    args->bytes_in_use = args->device->bytes_in_use;
    args->peak_bytes_in_use = args->device->bytes_peak;
    pthread_mutex_unlock(&fake_lock);
    args->peak_bytes_in_use_is_set = true;
    args->bytes_limit = args->device->client->memory_limit_bytes;
    args->bytes_limit_is_set = args->bytes_limit > 0;
    return NULL;
}

/* -- A device's thread ------------------------------------------------------ */

void fake_device_submit(PJRT_Device *device, fake_execution_t *execution)
{
    pthread_mutex_lock(&fake_lock);
    if (device->first == NULL)
        device->first = execution;
    else
        device->last->next = execution;
    device->last = execution;
    pthread_cond_broadcast(&fake_changed);
    pthread_mutex_unlock(&fake_lock);
}

/* The oldest, once it may run; NULL when the client ends. It stays in the queue
 * until it has run, so that it can be poisoned. */
static fake_execution_t *await_execution(PJRT_Device *device)
{
    pthread_mutex_lock(&fake_lock);
    while ((device->first == NULL && !device->client->is_ending) ||
           (device->first != NULL && !fake_execution_may_run(device->first)))
        pthread_cond_wait(&fake_changed, &fake_lock);
    fake_execution_t *execution = device->first;
    if (execution != NULL) device->first = execution->next;
    pthread_mutex_unlock(&fake_lock);
    return execution;
}

void *fake_device_loop(void *context)
{
    fake_execution_t *execution;
    while ((execution = await_execution(context)) != NULL)
        fake_execution_run(execution);
    return NULL;
}
