/* A PJRT plugin that wraps another: it forwards JAX's calls to the library of
 * TOW_METER_LIBRARY and accumulates their time by function. Only `tow bench
 * jax` loads it.
 *
 *     tow_meter_start()    clears the times and measures calls of this thread
 *     tow_meter_stop(...)  lines `FUNCTION CALLS NANOSECONDS`
 *     tow_meter_fake(1)    from now on executes nothing: results are empty and
 *                          ready at once, which leaves the cost of JAX
 *
 * Nested calls count for the outer one, and so does JAX's work in a callback
 * that the plugin makes before it returns. */
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <x86intrin.h>
#include <xla/pjrt/c/pjrt_c_api.h>

#define EXPORT        __attribute__((visibility("default")))
#define FIRST_OFFSET  offsetof(PJRT_Api, PJRT_Error_Destroy)
#define FUNCTIONS_MAX 200

EXPORT const PJRT_Api *GetPjrtApi(void);
EXPORT void tow_meter_start(void);
EXPORT void tow_meter_stop(char *text, size_t capacity);
EXPORT void tow_meter_fake(int fake);

/* Every function of the table takes one pointer, and returns one or nothing. */
typedef void *(*function_t)(void *args);

/* The function table, as a struct and as an array. */
typedef union table {
    PJRT_Api api;
    struct {
        char head[FIRST_OFFSET];
        function_t functions[FUNCTIONS_MAX];
    } list;
} table_t;

static const PJRT_Api *plugin; /* lent by the library */
static table_t shown;          /* for JAX: each function measures its time */
static table_t inner;          /* the plugin's functions, or our fakes */
static size_t function_count;

/* -- Times by function ---------------------------------------------------- */

static struct {
    uint64_t calls;
    uint64_t ticks;
} books[FUNCTIONS_MAX];
static _Thread_local bool is_booked;
static _Thread_local unsigned depth;
static uint64_t start_ticks;
static int64_t start_ns;

static int64_t now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

static void *call(size_t n, void *args)
{
    if (!is_booked || depth > 0) return inner.list.functions[n](args);
    depth++;
    const uint64_t before = __rdtsc();
    void *result = inner.list.functions[n](args);
    books[n].ticks += __rdtsc() - before;
    books[n].calls++;
    depth--;
    return result;
}

/* One function per slot of the table. Slots are numbered from 100, so that tens
 * and ones can be concatenated to a number. The formatter would rearrange these
 * lists. */
/* clang-format off */
#define PLACE(n)                       \
    static void *place_##n(void *args) \
    {                                  \
        return call((n) - 100, args);  \
    }
#define TEN(EACH, t)                                       \
    EACH(t##0) EACH(t##1) EACH(t##2) EACH(t##3) EACH(t##4) \
    EACH(t##5) EACH(t##6) EACH(t##7) EACH(t##8) EACH(t##9)
#define ALL(EACH)                                                         \
    TEN(EACH, 10) TEN(EACH, 11) TEN(EACH, 12) TEN(EACH, 13) TEN(EACH, 14) \
    TEN(EACH, 15) TEN(EACH, 16) TEN(EACH, 17) TEN(EACH, 18) TEN(EACH, 19) \
    TEN(EACH, 20) TEN(EACH, 21) TEN(EACH, 22) TEN(EACH, 23) TEN(EACH, 24) \
    TEN(EACH, 25) TEN(EACH, 26) TEN(EACH, 27) TEN(EACH, 28) TEN(EACH, 29)
/* clang-format on */
#define NAME_OF_PLACE(n) place_##n,

ALL(PLACE)
static const function_t places[FUNCTIONS_MAX] = {ALL(NAME_OF_PLACE)};

#define NAMED(f)                         \
    {                                    \
        offsetof(PJRT_Api, PJRT_##f), #f \
    }
static const struct {
    size_t offset;
    const char *name;
} names[] = {
    NAMED(Event_Destroy),
    NAMED(Event_IsReady),
    NAMED(Event_Error),
    NAMED(Event_Await),
    NAMED(Event_OnReady),
    NAMED(Client_BufferFromHostBuffer),
    NAMED(Device_DefaultMemory),
    NAMED(Device_GetDescription),
    NAMED(Memory_Kind),
    NAMED(Executable_NumOutputs),
    NAMED(Executable_NumReplicas),
    NAMED(Executable_NumPartitions),
    NAMED(LoadedExecutable_GetExecutable),
    NAMED(LoadedExecutable_AddressableDevices),
    NAMED(LoadedExecutable_Execute),
    NAMED(LoadedExecutable_IsDeleted),
    NAMED(Buffer_Destroy),
    NAMED(Buffer_ElementType),
    NAMED(Buffer_Dimensions),
    NAMED(Buffer_ToHostBuffer),
    NAMED(Buffer_Delete),
    NAMED(Buffer_IsDeleted),
    NAMED(Buffer_IsOnCpu),
    NAMED(Buffer_Device),
    NAMED(Buffer_Memory),
    NAMED(Buffer_ReadyEvent),
};

static void write_name(size_t n, char *name, size_t capacity)
{
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (names[i].offset == FIRST_OFFSET + n * sizeof(function_t)) {
            snprintf(name, capacity, "%s", names[i].name);
            return;
        }
    snprintf(name, capacity, "function-%zu", n);
}

void tow_meter_start(void)
{
    memset(books, 0, sizeof(books));
    is_booked = true;
    start_ns = now_ns();
    start_ticks = __rdtsc();
}

void tow_meter_stop(char *text, size_t capacity)
{
    const double ns_per_tick =
        (double)(now_ns() - start_ns) / (double)(__rdtsc() - start_ticks);
    is_booked = false;
    if (capacity > 0) text[0] = '\0';
    size_t at = 0;
    for (size_t n = 0; n < function_count && at < capacity; n++) {
        if (books[n].calls == 0) continue;
        char name[64];
        write_name(n, name, sizeof(name));
        at += (size_t)snprintf(text + at, capacity - at, "%s %llu %.0f\n", name,
                               (unsigned long long)books[n].calls,
                               (double)books[n].ticks * ns_per_tick);
    }
}

/* -- Fake executions ------------------------------------------------------ */

/* The first word of an empty result; a real one begins differently. */
static const char fake_mark;

typedef struct fake_buffer {
    const char *mark;
    PJRT_Device *device;
    PJRT_Memory *memory;
} fake_buffer_t;

static atomic_bool is_fake;

void tow_meter_fake(int fake)
{
    atomic_store(&is_fake, fake != 0);
}

static PJRT_Event *fake_event(void)
{
    return (PJRT_Event *)(uintptr_t)&fake_mark;
}

static fake_buffer_t *as_fake(PJRT_Buffer *buffer)
{
    fake_buffer_t *fake = (fake_buffer_t *)buffer;
    return fake->mark == &fake_mark ? fake : NULL;
}

/* Of the last executable: a benchmark runs one at a time. */
static struct {
    PJRT_LoadedExecutable *executable;
    PJRT_Device *const *devices;
    PJRT_Memory *memories[64];
    size_t result_count;
} last;

static void look_at(PJRT_LoadedExecutable *executable)
{
    PJRT_LoadedExecutable_AddressableDevices_Args devices = {
        .struct_size = sizeof(devices), .executable = executable};
    PJRT_LoadedExecutable_GetExecutable_Args within = {
        .struct_size = sizeof(within), .loaded_executable = executable};
    plugin->PJRT_LoadedExecutable_AddressableDevices(&devices);
    plugin->PJRT_LoadedExecutable_GetExecutable(&within);
    PJRT_Executable_NumOutputs_Args outputs = {.struct_size = sizeof(outputs),
                                               .executable = within.executable};
    PJRT_Executable_Destroy_Args destroyed = {.struct_size = sizeof(destroyed),
                                              .executable = within.executable};
    plugin->PJRT_Executable_NumOutputs(&outputs);
    plugin->PJRT_Executable_Destroy(&destroyed);
    last.executable = executable;
    last.devices = devices.addressable_devices;
    last.result_count = outputs.num_outputs;
    for (size_t i = 0; i < devices.num_addressable_devices && i < 64; i++) {
        PJRT_Device_DefaultMemory_Args memory = {
            .struct_size = sizeof(memory),
            .device = devices.addressable_devices[i]};
        plugin->PJRT_Device_DefaultMemory(&memory);
        last.memories[i] = memory.memory;
    }
}

static PJRT_Error *execute(PJRT_LoadedExecutable_Execute_Args *args)
{
    if (!atomic_load_explicit(&is_fake, memory_order_relaxed) ||
        args->num_devices > 64)
        return plugin->PJRT_LoadedExecutable_Execute(args);
    if (last.executable != args->executable) look_at(args->executable);
    for (size_t d = 0; d < args->num_devices; d++) {
        for (size_t i = 0; i < last.result_count; i++) {
            fake_buffer_t *fake = malloc(sizeof(*fake));
            if (fake == NULL) abort(); /* The measurement has ended. */
            *fake =
                (fake_buffer_t){&fake_mark, last.devices[d], last.memories[d]};
            args->output_lists[d][i] = (PJRT_Buffer *)fake;
        }
        if (args->device_complete_events != NULL)
            args->device_complete_events[d] = fake_event();
    }
    return NULL;
}

static PJRT_Error *buffer_destroy(PJRT_Buffer_Destroy_Args *args)
{
    fake_buffer_t *fake = as_fake(args->buffer);
    if (fake == NULL) return plugin->PJRT_Buffer_Destroy(args);
    free(fake);
    return NULL;
}

static PJRT_Error *buffer_device(PJRT_Buffer_Device_Args *args)
{
    const fake_buffer_t *fake = as_fake(args->buffer);
    if (fake == NULL) return plugin->PJRT_Buffer_Device(args);
    args->device = fake->device;
    return NULL;
}

static PJRT_Error *buffer_memory(PJRT_Buffer_Memory_Args *args)
{
    const fake_buffer_t *fake = as_fake(args->buffer);
    if (fake == NULL) return plugin->PJRT_Buffer_Memory(args);
    args->memory = fake->memory;
    return NULL;
}

static PJRT_Error *buffer_is_deleted(PJRT_Buffer_IsDeleted_Args *args)
{
    if (as_fake(args->buffer) == NULL)
        return plugin->PJRT_Buffer_IsDeleted(args);
    args->is_deleted = false;
    return NULL;
}

static PJRT_Error *buffer_delete(PJRT_Buffer_Delete_Args *args)
{
    return as_fake(args->buffer) == NULL ? plugin->PJRT_Buffer_Delete(args)
                                         : NULL;
}

static PJRT_Error *buffer_ready(PJRT_Buffer_ReadyEvent_Args *args)
{
    if (as_fake(args->buffer) == NULL)
        return plugin->PJRT_Buffer_ReadyEvent(args);
    args->event = fake_event();
    return NULL;
}

static PJRT_Error *event_destroy(PJRT_Event_Destroy_Args *args)
{
    return args->event == fake_event() ? NULL
                                       : plugin->PJRT_Event_Destroy(args);
}

static PJRT_Error *event_is_ready(PJRT_Event_IsReady_Args *args)
{
    if (args->event != fake_event()) return plugin->PJRT_Event_IsReady(args);
    args->is_ready = true;
    return NULL;
}

static PJRT_Error *event_await(PJRT_Event_Await_Args *args)
{
    return args->event == fake_event() ? NULL : plugin->PJRT_Event_Await(args);
}

static PJRT_Error *event_error(PJRT_Event_Error_Args *args)
{
    return args->event == fake_event() ? NULL : plugin->PJRT_Event_Error(args);
}

static PJRT_Error *event_on_ready(PJRT_Event_OnReady_Args *args)
{
    if (args->event != fake_event()) return plugin->PJRT_Event_OnReady(args);
    args->callback(NULL, args->user_arg);
    return NULL;
}

/* -- The table -------------------------------------------------------------------- */

static void put_fakes(PJRT_Api *api)
{
    api->PJRT_LoadedExecutable_Execute = execute;
    api->PJRT_Buffer_Destroy = buffer_destroy;
    api->PJRT_Buffer_Device = buffer_device;
    api->PJRT_Buffer_Memory = buffer_memory;
    api->PJRT_Buffer_IsDeleted = buffer_is_deleted;
    api->PJRT_Buffer_Delete = buffer_delete;
    api->PJRT_Buffer_ReadyEvent = buffer_ready;
    api->PJRT_Event_Destroy = event_destroy;
    api->PJRT_Event_IsReady = event_is_ready;
    api->PJRT_Event_Await = event_await;
    api->PJRT_Event_Error = event_error;
    api->PJRT_Event_OnReady = event_on_ready;
}

static const PJRT_Api *load(void)
{
    const char *path = getenv("TOW_METER_LIBRARY");
    void *library = path != NULL ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
    void *symbol = library != NULL ? dlsym(library, "GetPjrtApi") : NULL;
    if (symbol == NULL) {
        fprintf(stderr, "pjrt_meter: TOW_METER_LIBRARY: %s\n",
                path != NULL ? dlerror() : "not set");
        return NULL;
    }
    const PJRT_Api *(*get)(void);
    memcpy(&get, &symbol, sizeof(get));
    return get();
}

const PJRT_Api *GetPjrtApi(void)
{
    if (plugin != NULL) return &shown.api;
    plugin = load();
    if (plugin == NULL) return NULL;
    const size_t size = plugin->struct_size < sizeof(inner)
                            ? plugin->struct_size
                            : sizeof(inner);
    memcpy(&inner, plugin, size);
    put_fakes(&inner.api);
    shown = inner;
    function_count = (size - FIRST_OFFSET) / sizeof(function_t);
    for (size_t n = 0; n < function_count; n++)
        if (inner.list.functions[n] != NULL)
            shown.list.functions[n] = places[n];
    return &shown.api;
}
