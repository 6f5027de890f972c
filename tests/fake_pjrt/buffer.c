#include <stdlib.h>
#include <string.h>

#include "fake_impl.h"

static size_t element_bytes(PJRT_Buffer_Type type)
{
    switch (type) {
    case PJRT_Buffer_Type_F32:
    case PJRT_Buffer_Type_S32:
    case PJRT_Buffer_Type_U32: return 4;
    case PJRT_Buffer_Type_F64:
    case PJRT_Buffer_Type_S64:
    case PJRT_Buffer_Type_U64: return 8;
    case PJRT_Buffer_Type_F16:
    case PJRT_Buffer_Type_BF16: return 2;
    default: return 1;
    }
}

PJRT_Buffer *fake_buffer_make(PJRT_Device *device, PJRT_Buffer_Type type,
                              const int64_t *dims, size_t rank)
{
    PJRT_Buffer *buffer = calloc(1, sizeof(*buffer));
    if (buffer == NULL) abort();
    buffer->reference_count = 1;
    buffer->device = device;
    buffer->type = type;
    buffer->rank = rank;
    buffer->bytes = element_bytes(type);
    for (size_t i = 0; i < rank; i++) {
        if (i < 8) buffer->dims[i] = dims[i];
        buffer->bytes *= (size_t)dims[i];
    }
    buffer->ready = fake_event_make();
    return buffer;
}

PJRT_Error *fake_buffer_allocate(PJRT_Buffer *buffer)
{
    PJRT_Device *device = buffer->device;
    const int64_t limit = device->client->memory_limit_bytes;
    pthread_mutex_lock(&fake_lock);
    const int64_t in_use = device->bytes_in_use;
    const bool fits = limit == 0 || (int64_t)buffer->bytes <= limit - in_use;
    if (fits) device->bytes_in_use += (int64_t)buffer->bytes;
    if (device->bytes_in_use > device->bytes_peak)
        device->bytes_peak = device->bytes_in_use;
    pthread_mutex_unlock(&fake_lock);
    if (fits) {
        buffer->data = malloc(buffer->bytes > 0 ? buffer->bytes : 1);
        if (buffer->data != NULL) return NULL;
    }
    return fake_error(PJRT_Error_Code_RESOURCE_EXHAUSTED,
                      "out of memory: %zu bytes asked for, %lld of %lld in use",
                      buffer->bytes, (long long)in_use, (long long)limit);
}

void fake_buffer_retain(PJRT_Buffer *buffer)
{
    pthread_mutex_lock(&fake_lock);
    buffer->reference_count++;
    pthread_mutex_unlock(&fake_lock);
}

void fake_buffer_release(PJRT_Buffer *buffer)
{
    pthread_mutex_lock(&fake_lock);
    const bool is_last = --buffer->reference_count == 0;
    if (is_last && buffer->data != NULL && buffer->host_done == NULL)
        buffer->device->bytes_in_use -= (int64_t)buffer->bytes;
    pthread_mutex_unlock(&fake_lock);
    if (!is_last) return;
    if (buffer->host_done == NULL) {
        free(buffer->data);
    } else {
        fake_event_complete(buffer->host_done, NULL);
        fake_event_release(buffer->host_done);
    }
    fake_event_release(buffer->ready);
    free(buffer);
}

/* -- Copies ----------------------------------------------------------------- */

PJRT_Error *fake_buffer_fill(PJRT_Buffer *buffer, const void *data,
                             PJRT_HostBufferSemantics semantics,
                             PJRT_Event **out_done)
{
    if (semantics == PJRT_HostBufferSemantics_kImmutableZeroCopy) {
        buffer->data = (void *)data; /* It is only read. */
        buffer->host_done = fake_event_make();
        *out_done = fake_event_retain(buffer->host_done);
        return NULL;
    }
    PJRT_Error *error = fake_buffer_allocate(buffer);
    if (error != NULL) return error;
    if (buffer->bytes > 0) memcpy(buffer->data, data, buffer->bytes);
    *out_done = fake_event_make();
    fake_event_complete(*out_done, NULL);
    return NULL;
}

PJRT_Error *fake_buffer_from_host(PJRT_Client_BufferFromHostBuffer_Args *args)
{
    PJRT_Buffer *buffer =
        fake_buffer_make(args->device, args->type, args->dims, args->num_dims);
    PJRT_Error *error =
        fake_buffer_fill(buffer, args->data, args->host_buffer_semantics,
                         &args->done_with_host_buffer);
    if (error != NULL) {
        fake_buffer_release(buffer);
        return error;
    }
    const PJRT_Error lost = {PJRT_Error_Code_DATA_LOSS, "the copy was lost"};
    fake_event_complete(buffer->ready,
                        args->client->fails_uploads ? &lost : NULL);
    args->buffer = buffer;
    return NULL;
}

PJRT_Error *fake_buffer_uninitialized(
    PJRT_Client_CreateUninitializedBuffer_Args *args)
{
    PJRT_Buffer *buffer =
        fake_buffer_make(args->device, args->shape_element_type,
                         args->shape_dims, args->shape_num_dims);
    PJRT_Error *error = fake_buffer_allocate(buffer);
    if (error != NULL) {
        fake_buffer_release(buffer);
        return error;
    }
    /* A plugin with xla_cpu's extension gives zeroes. */
    if (buffer->data != NULL) memset(buffer->data, 0, buffer->bytes);
    fake_event_complete(buffer->ready, NULL);
    args->buffer = buffer;
    return NULL;
}

/* -- References ------------------------------------------------------------- */

static void begin_reading(PJRT_Buffer *buffer)
{
    pthread_mutex_lock(&fake_lock);
    buffer->reference_count++;
    buffer->reader_count++;
    pthread_mutex_unlock(&fake_lock);
}

static void end_reading(PJRT_Buffer *buffer)
{
    pthread_mutex_lock(&fake_lock);
    buffer->reader_count--;
    pthread_mutex_unlock(&fake_lock);
    fake_buffer_release(buffer);
}

PJRT_Error *fake_buffer_refer(
    PJRT_Buffer_IncreaseExternalReferenceCount_Args *args)
{
    if (args->buffer->is_deleted)
        return fake_error(PJRT_Error_Code_INVALID_ARGUMENT, "it was donated");
    begin_reading(args->buffer);
    return NULL;
}

PJRT_Error *fake_buffer_stop_referring(
    PJRT_Buffer_DecreaseExternalReferenceCount_Args *args)
{
    end_reading(args->buffer);
    return NULL;
}

/* -- Copies that wait for their source, on threads of their own -------------- */

typedef struct copying {
    PJRT_Buffer *source; /* counted */
    PJRT_Event *done;    /* counted */
    PJRT_Buffer *target; /* counted; NULL: to the host */
    void *destination;
} copying_t;

static PJRT_Error perform(const copying_t *copying)
{
    PJRT_Error error = fake_event_await(copying->source->ready);
    if (error.code != PJRT_Error_Code_OK) return error;
    void *destination = copying->destination;
    if (copying->target != NULL) {
        PJRT_Error *exhausted = fake_buffer_allocate(copying->target);
        if (exhausted != NULL) {
            error = *exhausted;
            free(exhausted);
            return error;
        }
        destination = copying->target->data;
    }
    if (copying->source->bytes > 0)
        memcpy(destination, copying->source->data, copying->source->bytes);
    return error;
}

static void *run_copying(void *context)
{
    copying_t *copying = context;
    const PJRT_Error error = perform(copying);
    /* First, because the client may be destroyed once the event is complete. */
    end_reading(copying->source);
    if (copying->target != NULL) fake_buffer_release(copying->target);
    fake_event_complete(copying->done, &error);
    fake_event_release(copying->done);
    free(copying);
    return NULL;
}

/* Takes what `copying` counts, except the source. */
static void start_copying(copying_t copying)
{
    copying_t *mine = malloc(sizeof(*mine));
    if (mine == NULL) abort();
    *mine = copying;
    begin_reading(copying.source);
    pthread_t thread;
    if (pthread_create(&thread, NULL, run_copying, mine) != 0) abort();
    pthread_detach(thread);
}

PJRT_Error *fake_buffer_to_host(PJRT_Buffer_ToHostBuffer_Args *args)
{
    if (args->dst_size < args->src->bytes)
        return fake_error(PJRT_Error_Code_INVALID_ARGUMENT, "no room");
    args->event = fake_event_make();
    start_copying((copying_t){.source = args->src,
                              .done = fake_event_retain(args->event),
                              .destination = args->dst});
    return NULL;
}

PJRT_Error *fake_buffer_to_device(PJRT_Buffer_CopyToDevice_Args *args)
{
    PJRT_Buffer *source = args->buffer;
    PJRT_Buffer *target = fake_buffer_make(args->dst_device, source->type,
                                           source->dims, source->rank);
    fake_buffer_retain(target);
    start_copying((copying_t){.source = source,
                              .done = fake_event_retain(target->ready),
                              .target = target});
    args->dst_buffer = target;
    return NULL;
}
