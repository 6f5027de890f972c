/* The objects of the fake plugin, which misbehaves in known ways. One lock
 * guards all shared state. */
#ifndef TOW_TESTS_FAKE_PJRT_FAKE_IMPL_H_
#define TOW_TESTS_FAKE_PJRT_FAKE_IMPL_H_

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "device/xla_cpu/xla_cpu.h"
#include "xla/pjrt/c/pjrt_c_api.h"

#define FAKE_DEVICE_COUNT_MAX   8
#define FAKE_ARGUMENT_COUNT_MAX 2
#define FAKE_TEXT_MAX           256

struct PJRT_Error {
    PJRT_Error_Code code;
    char message[FAKE_TEXT_MAX];
};

PJRT_Error *fake_error(PJRT_Error_Code code, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* -- Events ----------------------------------------------------------------- */

typedef struct fake_waiter fake_waiter_t;

struct PJRT_Event {
    int reference_count;
    bool is_ready;
    PJRT_Error error; /* code OK: none */
    fake_waiter_t *waiters;
};

/* One reference. */
PJRT_Event *fake_event_make(void);
PJRT_Event *fake_event_retain(PJRT_Event *event);
void fake_event_release(PJRT_Event *event);
/* `error` is lent, and may be NULL. */
void fake_event_complete(PJRT_Event *event, const PJRT_Error *error);
/* The error, or code OK. */
PJRT_Error fake_event_await(PJRT_Event *event);

PJRT_Error *fake_event_destroy(PJRT_Event_Destroy_Args *args);
PJRT_Error *fake_event_is_ready(PJRT_Event_IsReady_Args *args);
PJRT_Error *fake_event_on_ready(PJRT_Event_OnReady_Args *args);

/* -- Clients ---------------------------------------------------------------- */

typedef struct fake_execution fake_execution_t;

struct PJRT_DeviceDescription {
    int id;
    char name[32];
};

struct PJRT_Memory {
    int id;
    const char *kind;
    PJRT_Device *device;
};

#define FAKE_MEMORY_COUNT 2

struct PJRT_Device {
    PJRT_Memory memories[FAKE_MEMORY_COUNT];
    PJRT_Memory *memory_list[FAKE_MEMORY_COUNT];
    PJRT_Client *client;
    PJRT_DeviceDescription description;
    pthread_t thread; /* runs what is queued, in order */
    fake_execution_t *first;
    fake_execution_t *last;
    int64_t bytes_in_use;
    int64_t bytes_peak;
};

struct PJRT_Client {
    PJRT_Device devices[FAKE_DEVICE_COUNT_MAX];
    PJRT_Device *device_list[FAKE_DEVICE_COUNT_MAX];
    size_t device_count;
    int64_t memory_limit_bytes; /* of each device; 0: none */
    bool drops_poison;          /* executions ignore failed inputs */
    bool fails_uploads;
    bool is_off_host; /* the host cannot address its memory */
    bool is_ending;
};

PJRT_Error *fake_client_create(PJRT_Client_Create_Args *args);
PJRT_Error *fake_client_destroy(PJRT_Client_Destroy_Args *args);
PJRT_Error *fake_client_devices(PJRT_Client_AddressableDevices_Args *args);
PJRT_Error *fake_device_memory_stats(PJRT_Device_MemoryStats_Args *args);
void fake_device_submit(PJRT_Device *device, fake_execution_t *execution);
void *fake_device_loop(void *device);

/* -- Buffers ---------------------------------------------------------------- */

struct PJRT_Buffer {
    int reference_count; /* the holder's, and executions' */
    PJRT_Device *device;
    PJRT_Buffer_Type type;
    int64_t dims[8];
    size_t rank;
    size_t bytes;
    void *data; /* owned unless lent by the host */
    bool is_deleted;
    int reader_count;      /* shares and copies, which prevent donation */
    PJRT_Event *ready;     /* counted */
    PJRT_Event *host_done; /* counted; not NULL while the host lends the data */
};

/* One reference, and no memory yet. */
PJRT_Buffer *fake_buffer_make(PJRT_Device *device, PJRT_Buffer_Type type,
                              const int64_t *dims, size_t rank);
void fake_buffer_retain(PJRT_Buffer *buffer);
void fake_buffer_release(PJRT_Buffer *buffer);
/* RESOURCE_EXHAUSTED above the device's limit. */
PJRT_Error *fake_buffer_allocate(PJRT_Buffer *buffer);

PJRT_Error *fake_buffer_from_host(PJRT_Client_BufferFromHostBuffer_Args *args);
PJRT_Error *fake_buffer_uninitialized(
    PJRT_Client_CreateUninitializedBuffer_Args *args);
PJRT_Error *fake_buffer_to_host(PJRT_Buffer_ToHostBuffer_Args *args);
PJRT_Error *fake_buffer_to_device(PJRT_Buffer_CopyToDevice_Args *args);
PJRT_Error *fake_buffer_refer(
    PJRT_Buffer_IncreaseExternalReferenceCount_Args *args);
PJRT_Error *fake_buffer_stop_referring(
    PJRT_Buffer_DecreaseExternalReferenceCount_Args *args);
/* Fills a buffer that has no memory yet; its event is the caller's to complete.
 * The event is ready when `data` is no longer needed. */
PJRT_Error *fake_buffer_fill(PJRT_Buffer *buffer, const void *data,
                             PJRT_HostBufferSemantics semantics,
                             PJRT_Event **out_done);

/* -- Promises --------------------------------------------------------------- */

/* As the extension has them, and as PJRT has. */
void fake_set_query_handler(const tow_xla_query_handler_t *asker);
PJRT_Error *fake_promise(PJRT_Device *device, int type, const int64_t *dims,
                         size_t rank, PJRT_Buffer **out_buffer);
PJRT_Error *fake_fulfil(PJRT_Buffer *buffer, const void *data, int semantics,
                        PJRT_Event **out_done);
void fake_fail(PJRT_Buffer *buffer, int code, const char *message, size_t size);

PJRT_Error *fake_manager_create(
    PJRT_Client_CreateBuffersForAsyncHostToDevice_Args *args);
PJRT_Error *fake_manager_destroy(
    PJRT_AsyncHostToDeviceTransferManager_Destroy_Args *args);
PJRT_Error *fake_manager_retrieve(
    PJRT_AsyncHostToDeviceTransferManager_RetrieveBuffer_Args *args);
PJRT_Error *fake_manager_transfer(
    PJRT_AsyncHostToDeviceTransferManager_TransferLiteral_Args *args);
PJRT_Error *fake_manager_fail(
    PJRT_AsyncHostToDeviceTransferManager_SetBufferError_Args *args);

/* -- Programs --------------------------------------------------------------- */

typedef enum fake_kind {
    FAKE_ADD,    /* both arguments */
    FAKE_DONATE, /* the same, into the memory of the first */
    FAKE_COPY,   /* of the one argument */
    FAKE_HOLD,   /* the same, after fake_pjrt_release */
    FAKE_FAIL,   /* runs, and ends with an error */
    FAKE_LATE,   /* the same; its completion event is ready only after
                    fake_pjrt_release */
    FAKE_REFUSE, /* Execute itself gives an error */
} fake_kind_t;

struct PJRT_Executable {
    int reference_count;
    fake_kind_t kind;
    char text[FAKE_TEXT_MAX]; /* the program; also its serialised form */
    char name[32];
    int64_t dims[1];
    size_t rank_list[1];
    PJRT_Buffer_Type types[1];
    size_t argument_count;
    PJRT_Device *devices[FAKE_DEVICE_COUNT_MAX];
    size_t device_count;
    /* For the extension. */
    tow_xla_array_t arrays[FAKE_ARGUMENT_COUNT_MAX];
    tow_xla_alias_t alias;
    size_t donated;
    tow_xla_signature_t signature;
    PJRT_NamedValue cost;
};

struct PJRT_LoadedExecutable {
    PJRT_Executable *executable; /* counted */
};

struct fake_execution {
    fake_execution_t *next;
    PJRT_Executable *executable; /* counted */
    PJRT_Device *device;
    PJRT_Buffer *arguments[FAKE_ARGUMENT_COUNT_MAX]; /* counted */
    void *donated;       /* the memory of a donated argument */
    PJRT_Buffer *result; /* counted */
    PJRT_Event *done;    /* counted */
    int launch_id;
    PJRT_Error poison; /* code OK: none */
    bool is_held;      /* waits for fake_pjrt_release */
};

PJRT_Error *fake_compile(PJRT_Client_Compile_Args *args);
PJRT_Error *fake_serialize(PJRT_Executable_Serialize_Args *args);
PJRT_Error *fake_deserialize(PJRT_Executable_DeserializeAndLoad_Args *args);
PJRT_Error *fake_execute(PJRT_LoadedExecutable_Execute_Args *args);
PJRT_Error *fake_poison(PJRT_Device_PoisonExecution_Args *args);
void fake_executable_release(PJRT_Executable *executable);
void fake_execution_run(fake_execution_t *execution);
bool fake_execution_may_run(fake_execution_t *execution);

/* -- All of it -------------------------------------------------------------- */

/* Guards every field that more than one thread touches. */
extern pthread_mutex_t fake_lock;
extern pthread_cond_t fake_changed;

/* How many held executions may continue; tests find it by dlsym. */
__attribute__((visibility("default"))) void fake_pjrt_release(int count);

#endif /* TOW_TESTS_FAKE_PJRT_FAKE_IMPL_H_ */
